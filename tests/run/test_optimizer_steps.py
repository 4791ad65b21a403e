"""Optimizer steps are counted by step hooks, and each emits `before` and `after` exactly once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hookbus import Hook, HookBus, Run, Trainer, every
from hookbus.errors import LoopError
from hookbus.testing import RecordingBus, fake_training
from hookbus_checkpoint import CheckpointHook
from tests import toys

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


# -- closures --------------------------------------------------------------------------------------------------


class ClosureTraining(Training):
    """Loop that computes the loss in a closure, and records the gradient at each optimizer point."""

    def __init__(self, bus: Any, optimizer: Any = torch.optim.SGD, *, keyword: bool = False) -> None:
        super().__init__(bus, optimizer=optimizer)
        self.keyword, self.evaluations = keyword, 0
        self.seen: list[tuple[int, float | None]] = []
        bus.on("before_optimizer_step", name="look")(self.look)

    def look(self) -> None:
        grad = self.model.weight.grad
        self.seen.append((self.evaluations, None if grad is None else float(grad.sum())))

    def loss(self) -> Any:
        return torch.zeros((), requires_grad=True)  # the closure computes the gradients

    def closure(self) -> Any:
        self.optimizer.zero_grad()
        loss = super().loss()
        loss.backward()
        self.evaluations += 1
        return loss

    def update(self) -> None:
        if self.keyword:
            self.optimizer.step(closure=self.closure)
        else:
            self.optimizer.step(self.closure)


class TwiceSGD(torch.optim.SGD):
    """Optimizer that evaluates its closure twice per step."""

    def step(self, closure: Any = None) -> Any:
        closure()
        return closure()


def lbfgs(parameters: Any) -> Any:
    return torch.optim.LBFGS(parameters, lr=0.01, max_iter=4, tolerance_grad=0, tolerance_change=0)


@pytest.mark.parametrize("keyword", [False, True])
def test_step_with_a_closure_begins_when_the_gradients_exist(keyword: bool) -> None:
    training = ClosureTraining(RecordingBus(), keyword=keyword)
    training.run(2)
    # The gradient of the sum of two inputs that are 1.
    assert training.seen == [(1, 2.0), (2, 2.0)]
    assert [step for _, step in get_optimizer_events(training.bus)] == [0, 1, 1, 2]


def test_step_that_evaluates_its_closure_several_times_begins_once() -> None:
    training = ClosureTraining(RecordingBus(), lbfgs)
    training.run(2)
    assert training.evaluations == 8
    assert training.seen == [(1, 2.0), (5, 2.0)]
    assert training.steps == [1, 2]


def test_listener_acts_on_the_gradients_of_the_first_evaluation() -> None:
    training = ClosureTraining(HookBus(), lambda parameters: torch.optim.SGD(parameters, lr=1.0))
    before = training.model.weight.detach().clone()

    def halve() -> None:
        training.model.weight.grad.mul_(0.5)

    training.bus.on("before_optimizer_step", name="halve")(halve)
    training.run(1)
    torch.testing.assert_close(before - training.model.weight, torch.full((1, 2), 0.5))


def test_point_that_the_loop_emits_in_its_closure_is_emitted_once_per_step() -> None:
    bus: Any = RecordingBus()

    class EmittingTraining(ClosureTraining):
        def closure(self) -> Any:
            loss = super().closure()
            bus.emit("before_optimizer_step")
            return loss

    training = EmittingTraining(bus, lbfgs)
    training.run(2)
    assert [step for point, step in get_optimizer_events(bus) if point == "before_optimizer_step"] == [0, 1]


def test_closure_that_the_optimizer_ignores_does_not_suppress_the_point() -> None:
    class IgnoringSGD(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            del closure

    training = ClosureTraining(RecordingBus(), IgnoringSGD)
    training.run(1)
    assert training.seen == [(0, None)]
    assert [point for point, _ in get_optimizer_events(training.bus)] == list(OPTIMIZER_POINTS)


def test_step_after_a_closure_that_raised_an_exception_emits_both_points() -> None:
    class FailingTraining(ClosureTraining):
        fails = True

        def closure(self) -> Any:
            loss = super().closure()
            if self.fails and self.evaluations == 2:
                raise ArithmeticError  # after the step has begun
            return loss

        def update(self) -> None:
            try:
                super().update()
            except ArithmeticError:
                self.fails = False

    training = FailingTraining(RecordingBus(), TwiceSGD)
    training.run(2)
    assert training.steps == [0, 1]
    assert [point for point, _ in get_optimizer_events(training.bus)] == [OPTIMIZER_POINTS[0], *OPTIMIZER_POINTS]


# -- several optimizers ----------------------------------------------------------------------------------------


class TwoOptimizers:
    """Loop with the optimizers G and D, which steps them in the given order in each iteration."""

    def __init__(self, bus: Any, *schedules: str, **options: Any) -> None:
        self.bus, self.schedules, self.options = bus, schedules, options
        self.models = {name: nn.Linear(1, 1) for name in "GD"}
        self.optimizers = {name: torch.optim.SGD(self.models[name].parameters(), lr=0.1) for name in "GD"}
        self.steps: list[int] = []
        self.stepped: list[bool] = []

    def run(self) -> Any:
        iterations = len(self.schedules)
        with self.bus.run(model=self.models, optimizer=self.optimizers, iterations=iterations, **self.options) as run:
            for names in self.schedules:
                self.bus.emit("before_train_iter")
                for name in names:
                    self.step(name)
                self.bus.emit("after_train_iter")
                self.steps.append(run.steps_done)
                self.stepped.append(run.stepped)
        return run

    def step(self, name: str) -> None:
        self.optimizers[name].step()


def test_iteration_counts_the_steps_of_its_most_frequent_optimizer() -> None:
    training = TwoOptimizers(HookBus(), "GD", "DDDDDG", "", "D", "GGDD")
    run = training.run()
    assert training.steps == [1, 6, 6, 7, 9]
    assert training.stepped == [True, True, False, True, True]
    assert run.optimizer_steps() == {"steps/G": 4, "steps/D": 9}


def test_points_carry_the_optimizer_that_steps() -> None:
    bus: Any = RecordingBus()
    training = TwoOptimizers(bus, "GD", "D")
    training.run()
    names = {id(optimizer): name for name, optimizer in training.optimizers.items()}
    events = [event for event in bus.events if event.point in OPTIMIZER_POINTS]
    assert [names[id(event.arguments["optimizer"])] for event in events] == list("GGDDDD")


def test_schedule_of_steps_is_due_at_each_optimizer_of_the_step() -> None:
    bus: Any = HookBus()
    calls: list[tuple[str, int]] = []
    training = TwoOptimizers(bus, "GD", "GD", "GD")
    names = {id(optimizer): name for name, optimizer in training.optimizers.items()}
    for point in OPTIMIZER_POINTS:

        def listen(run: Any, optimizer: Any) -> None:
            calls.append((names[id(optimizer)], run.iter))

        bus.on(point, when=every(2), name=point)(listen)
    training.run()
    assert calls == [("G", 1), ("G", 1), ("D", 1), ("D", 1)]


class EmittingOptimizers(TwoOptimizers):
    def step(self, name: str) -> None:
        optimizer = self.optimizers[name] if self.passes else None
        self.bus.emit("before_optimizer_step", optimizer=optimizer)
        super().step(name)
        self.bus.emit("after_optimizer_step", optimizer=optimizer)

    passes = True


@pytest.mark.parametrize("counts_steps", [False, True])
def test_loop_that_emits_the_points_names_the_optimizer(counts_steps: bool) -> None:
    training = EmittingOptimizers(HookBus(), "GD", "DDG", counts_steps=counts_steps)
    run = training.run()
    assert training.steps == [1, 3]
    assert run.optimizer_steps() == {"steps/G": 2, "steps/D": 3}


@pytest.mark.parametrize("counts_steps", [False, True])
def test_point_without_its_optimizer_is_an_error(counts_steps: bool) -> None:
    training = EmittingOptimizers(HookBus(), "GD", counts_steps=counts_steps)
    training.passes = False
    with pytest.raises(LoopError, match=r"several optimizers \(G, D\) requires the optimizer, got none\. Pass"):
        training.run()


# -- learning rates --------------------------------------------------------------------------------------------


class RateTraining(Training):
    """Loop that sets the learning rate in each iteration, and records the rates that the run reports."""

    begins = True

    def run(self, iterations: int) -> Any:
        self.rates: list[Any] = []
        with self.bus.run(model=self.model, optimizer=self.optimizer, **self.options) as run:
            run.track_learning_rates()
            for i in range(iterations):
                if self.begins:
                    self.bus.emit("before_train_iter")
                self.optimizer.param_groups[0]["lr"] = 1.0 / (i + 1)
                if i != 2:
                    self.update()
                self.bus.emit("after_train_iter")
                self.optimizer.param_groups[0]["lr"] = 7.0  # a scheduler steps after the event
                self.rates.append(run.learning_rates()["lr"])
        return run


@pytest.mark.parametrize("begins", [True, False])
def test_learning_rates_are_those_of_the_last_optimizer_step(begins: bool) -> None:
    training = RateTraining(HookBus())
    training.begins = begins
    training.run(4)
    assert training.rates == [1.0, 0.5, 0.5, 0.25]


def test_learning_rate_that_a_listener_sets_for_the_step_is_recorded() -> None:
    training = RateTraining(HookBus())

    def set_rate(optimizer: Any) -> None:
        optimizer.param_groups[0]["lr"] = 3.0

    training.bus.on("before_optimizer_step")(set_rate)
    training.run(2)
    assert training.rates == [3.0, 3.0]


@pytest.mark.parametrize("points", [OPTIMIZER_POINTS, OPTIMIZER_POINTS[1:]])
def test_learning_rates_of_a_loop_that_counts_its_steps_are_recorded(points: tuple[str, ...]) -> None:
    class CountingTraining(RateTraining):
        def update(self) -> None:
            for point in points:
                self.bus.emit(point)

    training = CountingTraining(HookBus(), counts_steps=True)
    training.run(4)
    assert training.rates == [1.0, 0.5, 0.5, 0.25]


def test_learning_rates_before_the_first_step_are_the_current_ones() -> None:
    training = Training(HookBus())
    training.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))], "lr": 0.5})
    with training.bus.run(optimizer=training.optimizer) as run:
        assert run.learning_rates() == {"lr/0": 0.001, "lr/1": 0.5}


def test_learning_rates_of_named_optimizers_have_their_names() -> None:
    training = TwoOptimizers(HookBus(), "GD")
    training.optimizers["D"].add_param_group({"params": [nn.Parameter(torch.zeros(1))], "lr": 0.5})
    assert training.run().learning_rates() == {"lr/G": 0.1, "lr/D/0": 0.1, "lr/D/1": 0.5}


class GroupTraining(Training):
    """Loop that changes all values of the first group before each step and after it, and adds a group at its end."""

    def run(self, iterations: int, state: Any = None) -> Any:
        self.values: list[Any] = []
        with self.bus.run(model=self.model, optimizer=self.optimizer, **self.options) as run:
            run.track_optimizer_values("lr", "momentum", "weight_decay")
            if state is not None:
                run.load_state_dict(state)
            for i in range(iterations):
                self.bus.emit("before_train_iter")
                self.optimizer.param_groups[0] |= {"lr": 1.0, "betas": (0.5 / (i + 1), 0.9), "weight_decay": 0.25 * i}
                self.update()
                self.bus.emit("after_train_iter")
                self.optimizer.param_groups[0] |= {"lr": 7.0, "betas": (0.7, 0.7), "weight_decay": 7.0}
                self.values.append(run.optimizer_values("lr", "momentum", "weight_decay"))
            self.state = run.state_dict()
            group = {"params": [nn.Parameter(torch.zeros(1))], "name": "head", "lr": 3.0, "weight_decay": 0.0}
            self.optimizer.add_param_group(group)
            self.values.append(run.optimizer_values("lr", "momentum"))
        return run


def test_values_are_those_of_the_last_step_and_groups_that_are_added_appear_at_once() -> None:
    training = GroupTraining(HookBus())
    training.optimizer = torch.optim.Adam(training.model.parameters())
    training.run(2)
    first, second, added = training.values
    assert first == {"lr": 1.0, "momentum": 0.5, "weight_decay": 0.0}
    assert second == {"lr": 1.0, "momentum": 0.25, "weight_decay": 0.25}
    assert added == {"lr/0": 1.0, "lr/head": 3.0, "momentum/0": 0.25, "momentum/head": 0.9}

    resumed = GroupTraining(HookBus())
    resumed.optimizer = torch.optim.Adam(resumed.model.parameters())
    resumed.run(0, training.state)
    assert resumed.values == [added]


def test_resumed_run_continues_the_step_counts_and_the_learning_rates() -> None:
    training = TwoOptimizers(HookBus(), "GD", "D")
    training.bus.on("before_train")(lambda run: run.track_learning_rates())
    state = training.run().state_dict()
    resumed = TwoOptimizers(HookBus(), "D")
    resumed.optimizers["G"].param_groups[0]["lr"] = 9.0
    resumed.bus.on("before_train")(lambda run: run.load_state_dict(state))
    run = resumed.run()
    assert run.optimizer_steps() == {"steps/G": 1, "steps/D": 3}
    assert run.learning_rates()["lr/G"] == 0.1


def train(names: str, *, epochs: int = 2, **options: Any) -> None:
    """Train three iterations per epoch, in which the named optimizers step."""
    models = {name: nn.Linear(1, 1) for name in "GD"}
    optimizers = {name: torch.optim.SGD(model.parameters(), lr=0.1) for name, model in models.items()}
    bus = HookBus()
    with bus.run(model=models, optimizer=optimizers, epochs=epochs, **options) as run:
        for epoch in run.epochs():
            bus.emit("before_train_epoch")
            for _ in range(3):
                bus.emit("before_train_iter")
                for name in names.split(",")[epoch % len(names.split(","))]:
                    optimizers[name].step()
                bus.emit("after_train_iter")
            bus.emit("after_train_epoch")


def get_messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.getMessage().startswith("optimizer")]


def test_optimizer_that_never_steps_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    train("G")
    assert get_messages(caplog) == [
        "optimizer 'D': no step in 3 iterations, so its parameters are not trained. Call the step() of the optimizer "
        "that was passed to the run."
    ]


def test_optimizer_that_pauses_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    train("GD,G", epochs=4)
    assert get_messages(caplog) == []


def test_loop_without_epochs_is_checked_at_its_end(caplog: pytest.LogCaptureFixture) -> None:
    model, bus = nn.Linear(1, 1), HookBus()
    with bus.run(model=model, optimizer=torch.optim.SGD(model.parameters())):
        for _ in range(5):
            bus.emit("after_train_iter")
    assert get_messages(caplog)[0].startswith("optimizer: no step in 5 iterations, ")


@pytest.mark.parametrize("fused", [False, True])
def test_steps_that_a_scaler_always_skips_are_logged(fused: bool, caplog: pytest.LogCaptureFixture) -> None:
    model, bus = nn.Linear(1, 1), HookBus()
    optimizer = torch.optim.SGD(model.parameters(), fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with bus.run(model=model, optimizer=optimizer, scaler=scaler, epochs=2) as run:
        for epoch in run.epochs():
            bus.emit("before_train_epoch")
            for _ in range(3):
                bus.emit("before_train_iter")
                factor = float("inf") if epoch else 1.0
                scaler.scale(model(torch.ones(1, 1)).sum() * factor).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                bus.emit("after_train_iter")
            bus.emit("after_train_epoch")
    assert get_messages(caplog) == [
        "optimizer: the gradient scaler skipped every step in 3 iterations, because gradients contain inf or NaN, and "
        "reduced its scale from 1024 to 128. Find the first operation that overflows, or train with bf16."
    ]


def test_accumulation_longer_than_an_epoch_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    model = toys.net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options: dict[str, Any] = {"epochs": 3, "accumulate": 4, "work_dir": None, "default_hooks": False}
    Trainer(model, optimizer, nn.functional.cross_entropy, toys.pairs(2), **options).fit()
    assert get_messages(caplog) == []


def train_with_gaps(directory: Path, *, early: str = "", late: str = "", at_the_end: str = "", every: int = 1) -> None:
    """Train for two epochs of four iterations.

    Args:
        directory: Work directory.
        early, late, at_the_end: Names of what steps within an iteration, after its last event, and after an epoch.
        every: Number of iterations per step.
    """
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    parts = {"optimizer": optimizer, "scheduler": scheduler}
    bus = HookBus([CheckpointHook(save_best=False)])
    with bus.run(model=model, optimizer=optimizer, scheduler=scheduler, epochs=2, work_dir=directory) as run:
        for _ in run.epochs():
            bus.emit("before_train_epoch")
            for i, batch in run.batches([torch.ones(1, 2)] * 4):
                bus.emit("before_train_iter", batch_idx=i, batch=batch)
                model(batch).sum().backward()
                for name in early.split() if i % every == every - 1 else ():
                    parts[name].step()
                bus.emit("after_train_iter", batch_idx=i, batch=batch)
                for name in late.split() if i % every == every - 1 else ():
                    parts[name].step()
            bus.emit("after_train_epoch")
            for name in at_the_end.split():
                parts[name].step()


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize(("early", "late"), [("optimizer", "scheduler"), ("", "optimizer")])
def test_step_after_the_last_event_of_an_iteration_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, early: str, late: str, every: int
) -> None:
    train_with_gaps(tmp_path, early=early, late=late, every=every)
    [message] = [message for message in caplog.messages if "Call step() before" in message]
    assert message.startswith(f"{late}: stepped after after_train_iter of iteration {every}. A checkpoint")


@pytest.mark.parametrize("at_the_end", ["", "scheduler"])
def test_steps_within_iterations_and_at_the_end_of_epochs_are_not_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, at_the_end: str
) -> None:
    train_with_gaps(tmp_path, early="optimizer" if at_the_end else "optimizer scheduler", at_the_end=at_the_end)
    assert not any("stepped after" in message for message in caplog.messages)


@pytest.mark.parametrize("is_first", [True, False])
def test_resumed_epoch_whose_scheduler_steps_before_its_batches_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_first: bool
) -> None:
    def train(stop_at: int = 0) -> list[float]:
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        bus, rates = HookBus([CheckpointHook(save_best=False)]), []
        with bus.run(
            model=model, optimizer=optimizer, scheduler=scheduler, epochs=3, work_dir=tmp_path, resume="auto"
        ) as run:
            for epoch in run.epochs():
                if is_first and epoch:
                    scheduler.step()
                bus.emit("before_train_epoch")
                for i, batch in run.batches([torch.ones(1, 2)] * 2):
                    bus.emit("before_train_iter", batch_idx=i, batch=batch)
                    optimizer.zero_grad()
                    model(batch).sum().backward()
                    optimizer.step()
                    rates.append(optimizer.param_groups[0]["lr"])
                    if run.iters_done + 1 == stop_at:
                        run.request_stop("enough")
                    bus.emit("after_train_iter", batch_idx=i, batch=batch)
                bus.emit("after_train_epoch")
                if not is_first:
                    scheduler.step()
        return rates

    rates = train(stop_at=3) + train()
    reported = [message for message in caplog.messages if "stepped" in message]
    assert [rates, reported == []] == (
        [[1, 1, 0.5, 0.25, 0.125, 0.125], False] if is_first else [[1, 1, 0.5, 0.5, 0.25, 0.25], True]
    )
    if is_first:
        [message] = reported
        assert message.startswith("scheduler: stepped before the next iteration of an epoch that the run resumes after")


def test_steps_of_a_listener_before_the_training_are_not_counted() -> None:
    class RangeTest(Hook):
        def before_train(self, run: Run, model: nn.Module) -> None:
            with run.sandbox() as trial:
                trial.train_step((torch.ones(2, 3), torch.tensor([0, 1])))
            for _ in range(2):
                model.zero_grad()
                run.optimizer.step()

    assert fake_training([RangeTest()]).run.steps_done == 6
