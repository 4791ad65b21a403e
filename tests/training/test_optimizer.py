"""Updates are counted where they happen, and each has one `before` and one `after`, whoever fires them."""

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
    """A loop of one's own over made-up batches, with an optimizer that updates every `accumulate` of them."""

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

    def go(self, iterations: int) -> Any:
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


def optimizer_events(bus: Any) -> list[tuple[str, int]]:
    return [(each.point, each.arguments["step"]) for each in bus.events if each.point in OPTIMIZER_POINTS]


def test_accumulation_is_seen_without_the_loop_saying_anything() -> None:
    training = Training(RecordingBus(), accumulate=2)
    training.go(4)
    assert training.steps == [0, 1, 1, 2]
    assert training.stepped == [False, True, False, True]
    assert optimizer_events(training.bus) == [
        ("before_optimizer_step", 0),
        ("after_optimizer_step", 1),
        ("before_optimizer_step", 1),
        ("after_optimizer_step", 2),
    ]


def test_groups_that_go_over_the_end_of_an_epoch_are_counted_as_the_loop_makes_them() -> None:
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
@pytest.mark.parametrize("listens", [True, False])
def test_a_loop_that_fires_the_points_itself_does_not_double_them(explicit: tuple[str, ...], listens: bool) -> None:
    bus: Any = RecordingBus() if listens else HookBus()

    class Explicit(Training):
        def update(self) -> None:
            for point in explicit[:-1] or (explicit if explicit[0].startswith("before") else ()):
                bus.emit(point)
            super().update()
            if explicit[-1].startswith("after"):
                bus.emit(explicit[-1])

    training = Explicit(bus)
    training.go(3)
    assert training.steps == [1, 2, 3]
    if listens:
        expected = [(point, i + after) for i in range(3) for after, point in enumerate(OPTIMIZER_POINTS)]
        assert optimizer_events(bus) == expected


def test_updates_are_counted_by_the_points_where_the_loop_says_so() -> None:
    bus: Any = RecordingBus()

    class Emitting(Training):
        def update(self) -> None:
            bus.emit("before_optimizer_step")
            self.optimizer.step()
            self.optimizer.step()
            bus.emit("after_optimizer_step")

    training = Emitting(bus, accumulate=3, counts_steps=True)
    training.go(6)
    assert training.steps == [0, 0, 1, 1, 1, 2]
    assert [point for point, _ in optimizer_events(bus)] == list(OPTIMIZER_POINTS) * 2


def test_without_an_optimizer_each_iteration_is_an_update() -> None:
    bus: Any = RecordingBus()
    with bus.run(iterations=3) as run:
        for i in range(3):
            bus.emit("before_train_iter", batch_idx=i)
            assert run.steps_done == i
            bus.emit("after_train_iter", batch_idx=i)
            assert (run.steps_done, run.stepped) == (i + 1, True)
    assert optimizer_events(bus) == []


class Wrapped:
    """As Accelerate and Fabric wrap an optimizer."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer

    def step(self) -> None:
        self.optimizer.step()


def test_the_optimizer_inside_of_wrappers_is_watched() -> None:
    training = Training(RecordingBus(), optimizer=lambda parameters: Wrapped(Wrapped(torch.optim.SGD(parameters))))
    training.go(2)
    assert training.steps == [1, 2]
    assert len(optimizer_events(training.bus)) == 4


def test_an_optimizer_whose_updates_cannot_be_seen_is_refused_with_the_way_out() -> None:
    class Foreign:
        def step(self) -> None: ...

    with pytest.raises(LoopError, match="The updates of Foreign cannot be counted: .* say counts_steps=True"):
        Training(HookBus(), optimizer=lambda _: Foreign()).go(1)
    training = Training(HookBus(), optimizer=lambda _: Foreign(), counts_steps=True)
    training.go(1)
    assert training.steps == [0]


@pytest.mark.parametrize("fail", [False, True])
def test_the_optimizer_is_left_as_it_was(fail: bool) -> None:
    bus: Any = RecordingBus()
    bus.on("after_train_iter", when=every(2))(lambda run: 1 / 0 if fail else None)
    training = Training(bus)
    try:
        training.go(3)
    except ZeroDivisionError:
        assert fail
    optimizer = training.optimizer
    assert (len(optimizer._optimizer_step_pre_hooks), len(optimizer._optimizer_step_post_hooks)) == (0, 0)


def test_a_hook_of_the_optimizer_that_was_there_before_stays() -> None:
    called: list[str] = []
    training = Training(RecordingBus())
    training.optimizer.register_step_post_hook(lambda *_: called.append("mine"))
    training.go(2)
    training.optimizer.step()
    assert called == ["mine"] * 3


def test_a_listener_that_comes_in_the_middle_of_a_run_gets_the_updates_from_then_on() -> None:
    bus: Any = HookBus()
    seen: list[tuple[str, int]] = []

    class Late(Training):
        def update(self) -> None:
            if bus.current.iter == 1:
                for point in OPTIMIZER_POINTS:
                    bus.on(point, name=point)(noting(seen, point))
            super().update()

    training = Late(bus)
    training.go(3)
    assert training.steps == [1, 2, 3]
    assert seen == [
        ("before_optimizer_step", 1),
        ("after_optimizer_step", 2),
        ("before_optimizer_step", 2),
        ("after_optimizer_step", 3),
    ]


def noting(seen: list[tuple[str, int]], point: str) -> Callable[[int], None]:
    return lambda step: seen.append((point, step))


def test_schedules_at_the_optimizer_points_count_updates() -> None:
    bus: Any = HookBus()
    seen: dict[str, list[int]] = {point: [] for point in OPTIMIZER_POINTS}
    for point in OPTIMIZER_POINTS:
        bus.on(point, when=every(3), name=point)(collecting(seen[point]))
    Training(bus, accumulate=2).go(14)
    assert seen == {"before_optimizer_step": [2, 5], "after_optimizer_step": [3, 6]}


def collecting(steps: list[int]) -> Callable[[int], None]:
    return lambda step: steps.append(step)


# -- gradient scalers ------------------------------------------------------------------------------------------


def fused(parameters: Any) -> Any:
    return torch.optim.SGD(parameters, lr=0.1, fused=True)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, fused], ids=["plain", "fused"])
@pytest.mark.parametrize("listens", [True, False])
def test_an_update_that_a_gradient_scaler_leaves_out_counts_for_nothing(optimizer: Any, listens: bool) -> None:
    bus: Any = RecordingBus() if listens else HookBus()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)

    class Scaled(Training):
        def loss(self) -> Any:
            factor = float("inf") if self.bus.current.iters_done == 1 else 1.0
            return scaler.scale(super().loss() * factor)

        def update(self) -> None:
            scaler.step(self.optimizer)
            scaler.update()
            self.optimizer.zero_grad()

    training = Scaled(bus, optimizer=optimizer)
    training.go(4)
    assert training.steps == [1, 1, 2, 3]
    assert training.stepped == [True, False, True, True]
    assert all(bool(parameter.isfinite().all()) for parameter in training.model.parameters())
    if listens:
        assert optimizer_events(bus) == [
            (point, i + after) for i in range(3) for after, point in enumerate(OPTIMIZER_POINTS)
        ]


def test_an_explicit_after_of_an_update_that_was_left_out_is_not_fired() -> None:
    bus: Any = RecordingBus()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)

    class Scaled(Training):
        def loss(self) -> Any:
            return scaler.scale(super().loss() * (float("inf") if self.bus.current.iters_done == 1 else 1.0))

        def update(self) -> None:
            scaler.step(self.optimizer)
            bus.emit("after_optimizer_step")
            scaler.update()
            self.optimizer.zero_grad()

    training = Scaled(bus)
    training.go(3)
    assert training.steps == [1, 1, 2]
    assert [step for point, step in optimizer_events(bus) if point == "after_optimizer_step"] == [1, 2]


# -- several runs ----------------------------------------------------------------------------------------------


def test_a_second_run_on_the_same_bus_goes_on_counting_and_fires_once_per_update() -> None:
    training = Training(RecordingBus())
    training.go(2)
    training.go(4)
    assert training.steps == [1, 2, 3, 4, 5, 6]
    expected = [(point, i + after) for i in range(6) for after, point in enumerate(OPTIMIZER_POINTS)]
    assert optimizer_events(training.bus) == expected


def test_a_step_inside_of_a_step_is_one_update() -> None:
    class Twofold(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    parameter = torch.nn.Parameter(torch.zeros(1))
    torch.optim.SGD([parameter])  # from here on torch calls hooks for the step of the parent as well
    optimizer, seen = Twofold([parameter], lr=0.1), []
    parameter.grad = torch.ones(1)
    bus: Any = HookBus()
    bus.on("before_optimizer_step", name="before")(lambda: seen.append("before"))
    bus.on("after_optimizer_step", name="after")(lambda: seen.append("after"))
    with bus.run(optimizer=optimizer) as run:
        for _ in range(2):
            optimizer.step()
            bus.emit("after_train_iter")
        assert (run.steps_done, seen) == (2, ["before", "after"] * 2)


def test_a_step_that_was_broken_off_inside_of_another_one_does_not_hide_the_next() -> None:
    class Fails(torch.optim.SGD):
        fails = True

        def step(self, closure: Any = None) -> Any:
            if self.fails:
                raise ArithmeticError
            return super().step(closure)

    parameter = torch.nn.Parameter(torch.zeros(1))
    torch.optim.SGD([parameter])
    optimizer, bus = Fails([parameter], lr=0.1), HookBus()
    with bus.run(optimizer=optimizer) as run:
        with pytest.raises(ArithmeticError):
            optimizer.step()
        bus.emit("after_train_iter")
        optimizer.fails = False
        optimizer.step()
        assert run.steps_done == 1
