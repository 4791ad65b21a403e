"""Optimizer steps are counted by step hooks, and each emits `before` and `after` exactly once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from hookbus import HookBus, every
from hookbus.errors import LoopError
from hookbus.testing import RecordingBus

OPTIMIZER_POINTS = ("before_optimizer_step", "after_optimizer_step")


class Training:
    """Custom loop over synthetic batches with an optimizer step every `accumulate` batches."""

    def __init__(self, bus: Any, accumulate: int = 1, optimizer: Any = None, **options: Any) -> None:
        torch.manual_seed(0)
        self.bus, self.accumulate, self.options = bus, accumulate, options
        self.model = nn.Linear(2, 1)
        self.optimizer = optimizer(self.model.parameters()) if optimizer else torch.optim.SGD(self.model.parameters())
        self.steps: list[int] = []
        self.stepped: list[bool] = []

    def update(self) -> None:
        self.optimizer.step()

    def loss(self) -> Any:
        return self.model(torch.ones(1, 2)).sum()

    def run(self, iterations: int) -> Any:
        with self.bus.run(model=self.model, optimizer=self.optimizer, iterations=iterations, **self.options) as run:
            for i in range(iterations):
                self.bus.emit("before_train_iter", batch_idx=i)
                self.loss().backward()
                if (i + 1) % self.accumulate == 0:
                    self.update()
                self.bus.emit("after_train_iter", batch_idx=i)
                self.steps.append(run.steps_done)
                self.stepped.append(run.stepped)
        return run


def get_optimizer_events(bus: Any) -> list[tuple[str, int]]:
    return [(event.point, event.arguments["step"]) for event in bus.events if event.point in OPTIMIZER_POINTS]


def test_accumulation_is_detected_in_a_loop_without_optimizer_events() -> None:
    training = Training(RecordingBus(), accumulate=2)
    training.run(4)
    assert training.steps == [0, 1, 1, 2]
    assert training.stepped == [False, True, False, True]
    assert get_optimizer_events(training.bus) == [
        ("before_optimizer_step", 0),
        ("after_optimizer_step", 1),
        ("before_optimizer_step", 1),
        ("after_optimizer_step", 2),
    ]


def test_accumulation_group_that_spans_two_epochs_is_counted_once() -> None:
    bus: Any = RecordingBus()
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters())
    steps, due = [], []
    bus.on("after_train_iter", when=every(1, unit="step"))(lambda run: due.append(run.iters_done))
    with bus.run(optimizer=optimizer, epochs=2) as run:
        for _ in run.epochs():
            bus.emit("before_train_epoch")
            for i in range(5):
                bus.emit("before_train_iter", batch_idx=i)
                if (run.iters_done + 1) % 2 == 0:
                    optimizer.step()
                bus.emit("after_train_iter", batch_idx=i)
                steps.append(run.steps_done)
            bus.emit("after_train_epoch")
    assert steps == [0, 1, 1, 2, 2, 3, 3, 4, 4, 5]
    assert due == [2, 4, 6, 8, 10]


@pytest.mark.parametrize("explicit", [OPTIMIZER_POINTS, OPTIMIZER_POINTS[:1], OPTIMIZER_POINTS[1:]])
@pytest.mark.parametrize("has_listener", [True, False])
def test_point_that_the_loop_emits_itself_is_not_emitted_twice(explicit: tuple[str, ...], has_listener: bool) -> None:
    bus: Any = RecordingBus() if has_listener else HookBus()

    class ExplicitTraining(Training):
        def update(self) -> None:
            for point in explicit[:-1] or (explicit if explicit[0].startswith("before") else ()):
                bus.emit(point)
            super().update()
            if explicit[-1].startswith("after"):
                bus.emit(explicit[-1])

    training = ExplicitTraining(bus)
    training.run(3)
    assert training.steps == [1, 2, 3]
    if has_listener:
        expected = [(point, i + after) for i in range(3) for after, point in enumerate(OPTIMIZER_POINTS)]
        assert get_optimizer_events(bus) == expected


def test_emitted_points_are_counted_with_counts_steps() -> None:
    bus: Any = RecordingBus()

    class EmittingTraining(Training):
        def update(self) -> None:
            bus.emit("before_optimizer_step")
            self.optimizer.step()
            self.optimizer.step()
            bus.emit("after_optimizer_step")

    training = EmittingTraining(bus, accumulate=3, counts_steps=True)
    training.run(6)
    assert training.steps == [0, 0, 1, 1, 1, 2]
    assert [point for point, _ in get_optimizer_events(bus)] == list(OPTIMIZER_POINTS) * 2


def test_each_iteration_is_a_step_without_an_optimizer() -> None:
    bus: Any = RecordingBus()
    with bus.run(iterations=3) as run:
        for i in range(3):
            bus.emit("before_train_iter", batch_idx=i)
            assert run.steps_done == i
            bus.emit("after_train_iter", batch_idx=i)
            assert (run.steps_done, run.stepped) == (i + 1, True)
    assert get_optimizer_events(bus) == []


class OptimizerWrapper:
    """Wrapper in the style of Accelerate and Fabric."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer

    def step(self) -> None:
        self.optimizer.step()


def test_optimizer_inside_of_wrappers_is_tracked() -> None:
    training = Training(
        RecordingBus(), optimizer=lambda parameters: OptimizerWrapper(OptimizerWrapper(torch.optim.SGD(parameters)))
    )
    training.run(2)
    assert training.steps == [1, 2]
    assert len(get_optimizer_events(training.bus)) == 4


def test_optimizer_without_step_hooks_is_an_error_unless_counts_steps_is_set() -> None:
    class HooklessOptimizer:
        def step(self) -> None: ...

    with pytest.raises(LoopError, match="the steps of HooklessOptimizer cannot be counted, .* set counts_steps=True"):
        Training(HookBus(), optimizer=lambda _: HooklessOptimizer()).run(1)
    training = Training(HookBus(), optimizer=lambda _: HooklessOptimizer(), counts_steps=True)
    training.run(1)
    assert training.steps == [0]


@pytest.mark.parametrize("fail", [False, True])
def test_step_hooks_are_removed_after_the_run(fail: bool) -> None:
    bus: Any = RecordingBus()
    bus.on("after_train_iter", when=every(2))(lambda run: 1 / 0 if fail else None)
    training = Training(bus)
    try:
        training.run(3)
    except ZeroDivisionError:
        assert fail
    optimizer = training.optimizer
    assert (len(optimizer._optimizer_step_pre_hooks), len(optimizer._optimizer_step_post_hooks)) == (0, 0)


def test_step_hook_of_the_user_is_kept() -> None:
    called: list[str] = []
    training = Training(RecordingBus())
    training.optimizer.register_step_post_hook(lambda *_: called.append("mine"))
    training.run(2)
    training.optimizer.step()
    assert called == ["mine"] * 3


def test_listener_registered_during_a_run_receives_later_steps() -> None:
    bus: Any = HookBus()
    calls: list[tuple[str, int]] = []

    class LateListenerTraining(Training):
        def update(self) -> None:
            if bus.current.iter == 1:
                for point in OPTIMIZER_POINTS:
                    bus.on(point, name=point)(append_call(calls, point))
            super().update()

    training = LateListenerTraining(bus)
    training.run(3)
    assert training.steps == [1, 2, 3]
    assert calls == [
        ("before_optimizer_step", 1),
        ("after_optimizer_step", 2),
        ("before_optimizer_step", 2),
        ("after_optimizer_step", 3),
    ]


def append_call(calls: list[tuple[str, int]], point: str) -> Callable[[int], None]:
    return lambda step: calls.append((point, step))


def test_schedules_at_optimizer_points_count_steps() -> None:
    bus: Any = HookBus()
    steps: dict[str, list[int]] = {point: [] for point in OPTIMIZER_POINTS}
    for point in OPTIMIZER_POINTS:
        bus.on(point, when=every(3), name=point)(append_step(steps[point]))
    Training(bus, accumulate=2).run(14)
    assert steps == {"before_optimizer_step": [2, 5], "after_optimizer_step": [3, 6]}


def append_step(steps: list[int]) -> Callable[[int], None]:
    return lambda step: steps.append(step)


# -- gradient scalers ------------------------------------------------------------------------------------------


def fused(parameters: Any) -> Any:
    return torch.optim.SGD(parameters, lr=0.1, fused=True)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, fused], ids=["plain", "fused"])
@pytest.mark.parametrize("has_listener", [True, False])
def test_step_that_a_gradient_scaler_skips_is_not_counted(optimizer: Any, has_listener: bool) -> None:
    bus: Any = RecordingBus() if has_listener else HookBus()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)

    class ScaledTraining(Training):
        def loss(self) -> Any:
            factor = float("inf") if self.bus.current.iters_done == 1 else 1.0
            return scaler.scale(super().loss() * factor)

        def update(self) -> None:
            scaler.step(self.optimizer)
            scaler.update()
            self.optimizer.zero_grad()

    training = ScaledTraining(bus, optimizer=optimizer)
    training.run(4)
    assert training.steps == [1, 1, 2, 3]
    assert training.stepped == [True, False, True, True]
    assert all(bool(parameter.isfinite().all()) for parameter in training.model.parameters())
    if has_listener:
        assert get_optimizer_events(bus) == [
            (point, i + after) for i in range(3) for after, point in enumerate(OPTIMIZER_POINTS)
        ]


def test_explicit_after_of_a_skipped_step_is_not_emitted() -> None:
    bus: Any = RecordingBus()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)

    class ScaledTraining(Training):
        def loss(self) -> Any:
            return scaler.scale(super().loss() * (float("inf") if self.bus.current.iters_done == 1 else 1.0))

        def update(self) -> None:
            scaler.step(self.optimizer)
            bus.emit("after_optimizer_step")
            scaler.update()
            self.optimizer.zero_grad()

    training = ScaledTraining(bus)
    training.run(3)
    assert training.steps == [1, 1, 2]
    assert [step for point, step in get_optimizer_events(bus) if point == "after_optimizer_step"] == [1, 2]


# -- multiple runs ----------------------------------------------------------------------------------------------


def test_second_run_on_a_bus_continues_the_count_and_emits_once_per_step() -> None:
    training = Training(RecordingBus())
    training.run(2)
    training.run(4)
    assert training.steps == [1, 2, 3, 4, 5, 6]
    expected = [(point, i + after) for i in range(6) for after, point in enumerate(OPTIMIZER_POINTS)]
    assert get_optimizer_events(training.bus) == expected


def test_nested_optimizer_steps_are_counted_once() -> None:
    class NestedSGD(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    parameter = torch.nn.Parameter(torch.zeros(1))
    torch.optim.SGD([parameter])  # torch 2.x patches `step` of a class for hooks when its first instance is created
    optimizer, calls = NestedSGD([parameter], lr=0.1), []
    parameter.grad = torch.ones(1)
    bus: Any = HookBus()
    bus.on("before_optimizer_step", name="before")(lambda: calls.append("before"))
    bus.on("after_optimizer_step", name="after")(lambda: calls.append("after"))
    with bus.run(optimizer=optimizer) as run:
        for _ in range(2):
            optimizer.step()
            bus.emit("after_train_iter")
        assert (run.steps_done, calls) == (2, ["before", "after"] * 2)


def test_nested_step_that_raises_does_not_affect_the_next_step() -> None:
    class FailingSGD(torch.optim.SGD):
        fails = True

        def step(self, closure: Any = None) -> Any:
            if self.fails:
                raise ArithmeticError
            return super().step(closure)

    parameter = torch.nn.Parameter(torch.zeros(1))
    torch.optim.SGD([parameter])
    optimizer, bus = FailingSGD([parameter], lr=0.1), HookBus()
    with bus.run(optimizer=optimizer) as run:
        with pytest.raises(ArithmeticError):
            optimizer.step()
        bus.emit("after_train_iter")
        optimizer.fails = False
        optimizer.step()
        assert run.steps_done == 1
