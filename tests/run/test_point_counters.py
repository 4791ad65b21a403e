"""Tests of the schedules of each point against the counts of a run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hookbus import HookBus, between, every, hookimpl, last, once
from hookbus._events.points import Unit
from hookbus._events.schedules import Schedule
from hookbus._run.clock import Clock
from hookbus._run.point_counters import PointCounters
from hookbus.errors import ConfigError
from hookbus.lifecycle import POINTS
from tests import toys

# -- schedules in a run --------------------------------------------------------------------------------

ITERATION = ("before_train_iter", "after_train_iter")
EPOCH = ("before_train_epoch", "after_epoch")


@dataclass
class Plan:
    """Training, with batch sizes by epoch, micro-batches per step, and iterations after which it is interrupted."""

    epochs: list[list[int]]
    accumulate: int = 1
    breaks: set[int] = field(default_factory=set)

    def iterations(self) -> Iterator[dict[str, Any]]:
        """Yield the numbers of each iteration, from 1, by their definition instead of the clock."""
        number = samples = 0
        for epoch, sizes in enumerate(self.epochs, 1):
            for batch, size in enumerate(sizes, 1):
                number += 1
                place = (number - 1) % self.accumulate + 1
                yield {
                    "iter": number,
                    "epoch": epoch,
                    "batch": batch,
                    "step": (number - 1) // self.accumulate + 1,
                    "first_of_step": place == 1,
                    "last_of_step": place == self.accumulate,
                    "samples": range(samples + 1, samples + size + 1),
                }
                samples += size


def train(plan: Plan, schedule: Schedule) -> dict[str, list[int]]:
    """Return the iterations or epochs at which a scheduled listener of each point was called."""
    called: dict[str, list[int]] = {point: [] for point in (*ITERATION, *EPOCH)}
    state: dict[str, Any] | None = None
    while True:
        bus = HookBus()
        listen(bus, schedule, called)
        clock = bus.current.clock
        clock.counts_iterations = False
        clock.max_epochs = len(plan.epochs)
        clock.epoch_length = len(plan.epochs[0]) if len({len(sizes) for sizes in plan.epochs}) == 1 else None
        if state is not None:
            clock.load_state_dict(state)
            bus.invalidate()
        state = train_until_break(plan, bus)
        if state is None:
            return called


def listen(bus: HookBus, schedule: Schedule, called: dict[str, list[int]]) -> None:
    for point in (*ITERATION, *EPOCH):
        bus.on(point, when=schedule, name=point)(recording(called[point], "iter" if point in ITERATION else "epoch"))


def recording(numbers: list[int], index: str) -> Callable[[Any], None]:
    return lambda run: numbers.append(getattr(run, index) + 1)


def train_until_break(plan: Plan, bus: HookBus) -> dict[str, Any] | None:
    """Train from the position of the clock. Return its state at an interruption, None at the end."""
    clock, start = bus.current.clock, bus.current.clock.iters_done
    while clock.epochs_done < len(plan.epochs):
        bus.fire("before_epoch")
        bus.fire("before_train_epoch")
        for size in plan.epochs[clock.epoch][clock.iters_done - clock.epoch_first_iter :]:
            bus.fire("before_train_iter", batch=torch.empty(size))
            if (clock.iters_done + 1) % plan.accumulate == 0:
                clock.count_step()
            bus.fire("after_train_iter", batch=torch.empty(size))
            if clock.iters_done in plan.breaks and clock.iters_done > start:
                return clock.state_dict()
        bus.fire("after_train_epoch")
        bus.fire("after_epoch")
    return None


Test = Callable[[int], bool]
Rule = Callable[[dict[str, Any], str], bool]


def spanning(unit: Unit, test: Test) -> Rule:
    """Return a rule that is due if the event starts (before) or completes (after) a number that passes."""

    def rule(numbers: dict[str, Any], point: str) -> bool:
        if unit == "step":
            opens = numbers["first_of_step" if point == "before_train_iter" else "last_of_step"]
            return bool(opens) and test(numbers["step"])
        if unit == "sample":
            return any(map(test, numbers["samples"]))
        return test(numbers[unit])

    return rule


def inside(unit: Unit, first: int, final: int) -> Rule:
    """Return a rule that is due while the current number is within a range."""

    def rule(numbers: dict[str, Any], point: str) -> bool:
        number = numbers["samples"].start if unit == "sample" else numbers[unit]
        return first <= number <= final

    return rule


counts = st.integers(1, 7)
units = st.sampled_from(["iter", "batch", "step", "epoch", "sample"])
plans = st.builds(
    Plan,
    st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=4), min_size=1, max_size=4),
    st.integers(1, 3),
)
atoms = st.one_of(
    st.builds(lambda n, u: (every(n, unit=u), spanning(u, lambda x: x % n == 0)), counts, units),
    st.builds(
        lambda n, s, u: (every(n, start=s, unit=u), spanning(u, lambda x: x >= s and (x - s) % n == 0)),
        counts,
        counts,
        units,
    ),
    st.builds(lambda a, n, u: (between(a, a + n, unit=u), inside(u, a, a + n)), counts, counts, units),
    st.builds(lambda ns, u: (once(*ns, unit=u), spanning(u, lambda x: x in ns)), st.lists(counts, min_size=1), units),
)
rules = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.builds(lambda a, b: (a[0] & b[0], lambda n, p: a[1](n, p) and b[1](n, p)), inner, inner),
        st.builds(lambda a, b: (a[0] | b[0], lambda n, p: a[1](n, p) or b[1](n, p)), inner, inner),
        st.builds(lambda a: (~a[0], lambda n, p: not a[1](n, p)), inner),
    ),
    max_leaves=4,
)


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(plans, rules)
def test_listener_is_called_at_the_iterations_of_the_schedule(plan: Plan, scheduled: tuple[Schedule, Rule]) -> None:
    schedule, rule = scheduled
    called = train(plan, schedule)
    for point in ITERATION:
        assert called[point] == [n["iter"] for n in plan.iterations() if rule(n, point)], point


@pytest.mark.slow
@settings(deadline=None, max_examples=100)
@given(plans, rules, st.sets(st.integers(1, 15)))
def test_resumed_run_has_the_same_due_iterations_and_epochs(
    plan: Plan, scheduled: tuple[Schedule, Rule], breaks: set[int]
) -> None:
    schedule, _ = scheduled
    complete, interrupted = train(plan, schedule), train(Plan(plan.epochs, plan.accumulate, breaks), schedule)
    for point in (*ITERATION, "after_epoch"):
        assert interrupted[point] == complete[point], point
    assert set(interrupted["before_train_epoch"]) >= set(complete["before_train_epoch"])


@pytest.mark.slow
@settings(deadline=None)
@given(st.integers(1, 4), st.integers(1, 5), counts, st.sampled_from([None, "epoch"]))
def test_epochs_are_counted_equally_at_before_and_after_points(
    epochs: int, length: int, n: int, unit: Unit | None
) -> None:
    called = train(Plan([[1] * length] * epochs), every(n, unit=unit))
    assert called["before_train_epoch"] == called["after_epoch"] == [e for e in range(1, epochs + 1) if e % n == 0]


def test_finer_unit_at_epoch_points_is_due_in_the_completing_epoch() -> None:
    plan = Plan([[2, 2, 2]] * 4, accumulate=2)
    assert train(plan, every(5, unit="iter"))["after_epoch"] == [2, 4]
    assert train(plan, every(2, unit="step"))["after_epoch"] == [2, 3, 4]
    assert train(plan, every(8, unit="sample"))["after_epoch"] == [2, 3, 4]
    assert train(plan, between(4, 6, unit="iter"))["after_epoch"] == [2]


def test_last_is_due_once_at_the_end_in_iterations_and_in_epochs() -> None:
    plan = Plan([[1] * 3] * 4)
    called = train(plan, last)
    assert called == {
        "before_train_iter": [12],
        "after_train_iter": [12],
        "before_train_epoch": [4],
        "after_epoch": [4],
    }
    assert train(plan, last(unit="epoch"))["after_train_iter"] == [10, 11, 12]
    assert train(plan, ~last & every(4))["after_train_iter"] == [4, 8]


def test_last_without_a_limit_raises_with_hook_and_point() -> None:
    plan = Plan([[1], [1, 1]])
    with pytest.raises(
        ConfigError, match="hook 'before_train_iter' at before_train_iter: when=last: the run has no known limit"
    ):
        train(plan, last)


def test_last_iteration_is_due_in_its_epoch() -> None:
    called: list[tuple[int, bool]] = []

    class Hook:
        @hookimpl(when=last(unit="iter"))
        def after_epoch(self, run: Any) -> None:
            called.append((run.iters_done, run.epoch_complete))

    toys.trainer(Hook(), iterations=5).fit()  # with 3 batches per epoch, the second epoch is truncated
    toys.trainer(Hook(), iterations=6).fit()
    assert called == [(5, False), (6, True)]


def test_last_is_due_at_the_end_if_earlier_epochs_were_shorter() -> None:
    called: list[int] = []

    class Hook:
        @hookimpl(when=last)
        def after_train_iter(self, run: Any) -> None:
            called.append(run.iters_done)

    bus = HookBus([Hook()])
    clock = bus.current.clock
    clock.max_epochs, clock.epoch_length = 4, 10
    for length in (10, 3, 7, 10):
        bus.fire("before_epoch")
        for _ in range(length):
            bus.fire("after_train_iter")
        bus.fire("after_epoch")
    assert called == [30]


def test_two_optimizer_steps_in_one_iteration_are_both_counted() -> None:
    called: list[int] = []
    bus = HookBus()
    bus.current.clock.counts_iterations = False
    bus.on("after_train_iter", when=every(3, unit="step"))(lambda run: called.append(run.steps_done))
    for _ in range(5):
        bus.fire("before_train_iter")
        bus.current.clock.count_step()
        bus.current.clock.count_step()
        bus.fire("after_train_iter")
    assert called == [4, 6, 10]


# -- view from one point -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["after_val_epoch", "after_test_epoch"])
def test_validation_epoch_counts_as_the_current_iteration(name: str) -> None:
    clock = Clock()
    clock.begin_epoch()
    for _ in range(15):
        clock.end_iter(None)
    view = PointCounters(clock, POINTS[name])
    assert view.range("iter") == (15, 15)
    assert not every(10, unit="iter").due(view)
    assert every(1).due(view)


def test_every_loader_of_a_validation_in_a_due_epoch_is_due() -> None:
    called: list[tuple[int, str]] = []
    bus = HookBus()
    bus.on("after_val_epoch", when=every(2))(lambda run, dataloader_name: called.append((run.epoch, dataloader_name)))
    for _ in range(4):
        bus.fire("before_epoch")
        for name in ("clean", "noisy"):
            bus.fire("before_val_epoch", dataloader_name=name)
            bus.fire("after_val_epoch", dataloader_name=name)
        bus.fire("after_epoch")
    assert called == [(1, "clean"), (1, "noisy"), (3, "clean"), (3, "noisy")]


@pytest.mark.parametrize(
    ("schedule", "epochs"),
    [
        (every(2, unit="epoch"), [2, 4]),
        (between(2, 3, unit="epoch") & ~once(2, unit="epoch"), [3]),
        (every(9, unit="iter"), [3]),  # three iterations per epoch
        (every(3, unit="step"), [2, 4]),  # an optimizer step in iterations 2, 4, ...; numbers 2, 3, 5 and 6
        (last(unit="epoch"), [4]),
    ],
)
@pytest.mark.parametrize("point", ["before_val", "after_save_checkpoint", "log_scalars", "after_val"])
def test_points_without_a_unit_evaluate_the_schedule_against_the_clock(
    schedule: Schedule, epochs: list[int], point: str
) -> None:
    called: list[int] = []
    bus = HookBus()
    bus.current.clock.max_epochs, bus.current.clock.counts_iterations = 4, False
    bus.on(point, when=schedule)(lambda run: called.append(run.epoch + 1))
    for _ in range(4):
        bus.fire("before_epoch")
        for _ in range(3):
            bus.fire("before_train_iter")
            if bus.current.clock.iters_done % 2:
                bus.current.clock.count_step()
            bus.fire("after_train_iter")
        bus.fire(point)
        bus.fire("after_epoch")
    assert called == epochs


def test_batches_of_each_validation_loader_are_counted_from_one() -> None:
    called: list[int] = []
    bus = HookBus()
    bus.on("after_val_iter", when=every(3))(lambda run, batch_idx: called.append(batch_idx))
    for _ in range(2):
        bus.fire("before_val_epoch")
        for batch_idx in range(7):
            bus.fire("before_val_iter", batch_idx=batch_idx)
            bus.fire("after_val_iter", batch_idx=batch_idx)
    assert called == [2, 5, 2, 5]


def test_batches_are_counted_if_the_first_event_was_omitted() -> None:
    called: list[tuple[int, int]] = []
    bus = HookBus()
    bus.on("after_forward", when=every(2, unit="batch"))(lambda run: called.append((run.epoch, run.clock.batch)))
    for _ in range(2):
        bus.fire("before_epoch")
        for batch in range(5):
            bus.fire("before_train_iter")
            if batch:
                bus.fire("after_forward")
            bus.fire("after_train_iter")
        bus.fire("after_epoch")
    assert called == [(0, 1), (0, 3), (1, 1), (1, 3)]


def test_batches_without_an_index_are_counted() -> None:
    seen: list[int] = []
    bus = HookBus()
    bus.on("after_val_iter")(lambda batch_idx: seen.append(batch_idx))
    bus.fire("before_val_epoch")
    for _ in range(2):
        bus.fire("before_val_iter")
        bus.fire("after_val_iter")
    bus.fire("after_val_iter")
    assert seen == [0, 1, 2]


def test_every_batch_of_a_validation_after_a_due_step_is_due() -> None:
    called: list[int] = []
    bus = HookBus()
    bus.on("after_val_iter", when=every(2, unit="step"))(lambda run, batch_idx: called.append(run.steps_done))
    for _ in range(4):
        bus.fire("after_train_iter")
        bus.fire("before_val_epoch")
        bus.fire("after_val_iter")
        bus.fire("after_val_iter")
    assert called == [2, 2, 4, 4]


def test_schedules_in_epochs_are_not_due_in_a_truncated_epoch() -> None:
    called: dict[str, list[int]] = {}
    bus = HookBus()
    schedules = {"every": every(1), "not": ~every(2), "between": between(0, 9), "iter": every(2, unit="iter")}
    for name, schedule in schedules.items():
        bus.on("after_epoch", when=schedule, name=name)(recording(called.setdefault(name, []), "epoch"))
    clock = bus.current.clock
    bus.fire("before_epoch")
    bus.fire("after_train_iter")
    bus.fire("after_train_iter")
    clock.truncate_epoch()
    bus.fire("after_epoch")
    assert called == {"every": [], "not": [], "between": [], "iter": [1]}


# -- seconds -------------------------------------------------------------------------------------------


class Seconds:
    """Plugin with a listener every ten seconds at the start and the end of iterations and epochs."""

    def __init__(self) -> None:
        self.called: dict[str, list[int]] = {"before": [], "after": [], "epoch": []}

    @hookimpl(when=every(10, unit="seconds"))
    def before_train_iter(self, run: Any) -> None:
        self.called["before"].append(run.iter)

    @hookimpl(when=every(10, unit="seconds"))
    def after_train_iter(self, run: Any) -> None:
        self.called["after"].append(run.iter)

    @hookimpl(when=every(10, unit="seconds"))
    def after_epoch(self, run: Any) -> None:
        self.called["epoch"].append(run.epoch)


def train_by_time(durations: list[float], breaks: Collection[int] = (), disturb: bool = False) -> dict[str, list[int]]:
    """Train iterations of these durations, four per epoch, interrupted and resumed after those in `breaks`."""
    hook, now = Seconds(), [1000.0]
    state: dict[str, Any] | None = None
    done = 0
    while done < len(durations):
        bus = HookBus([hook])
        clock = bus.current.clock
        clock.timer = lambda: now[0]
        if state is not None:
            clock.load_state_dict(state)
            bus.invalidate()
        bus.fire("before_train")
        while done < len(durations):
            bus.fire("before_epoch")
            for duration in durations[done : done - done % 4 + 4]:
                bus.fire("before_train_iter")
                now[0] += duration
                bus.fire("after_train_iter")
                done += 1
                if disturb:
                    bus.register(Bystander(), f"other {done}")
                if done in breaks:
                    break
            if done in breaks:
                break
            bus.fire("after_epoch")
        state = clock.state_dict()
        bus.fire("after_train")
        now[0] += 12345.0
    return hook.called


class Bystander:
    @hookimpl
    def cleanup(self) -> None: ...


def test_seconds_are_due_in_the_first_iteration_that_starts_after_them() -> None:
    # Iterations start at 0, 4, 8, 12, 16, 20, 24, 28 seconds: second 10 has elapsed at 12, second 20 at 20.
    called = train_by_time([4.0] * 8)
    assert called == {"before": [3, 5], "after": [3, 5], "epoch": [0, 1]}


# Multiples of 1/8 s, because sums of other floats depend on the time at which the timer starts.
durations = st.lists(st.integers(0, 200).map(lambda eighths: eighths / 8), min_size=1, max_size=14)


@settings(deadline=None)
@given(durations)
def test_seconds_are_due_once_at_both_points_of_an_iteration(
    times: list[float],
) -> None:
    starts = [sum(times[:i]) for i in range(len(times))]
    tens = [int(start) // 10 for start in starts]
    expected = [i for i in range(len(times)) if tens[i] > (tens[i - 1] if i else 0)]
    called = train_by_time(times)
    assert called["before"] == called["after"] == expected


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(st.integers(0, 25).map(float), min_size=1, max_size=14), st.sets(st.integers(1, 13)))
def test_seconds_continue_after_resume_and_registration_changes(times: list[float], breaks: set[int]) -> None:
    complete = train_by_time(times)
    assert train_by_time(times, breaks - {len(times)})["after"] == complete["after"]
    assert train_by_time(times, disturb=True) == complete


def test_late_listener_is_not_due_for_earlier_seconds() -> None:
    now, called = [0.0], []
    bus = HookBus()
    bus.current.clock.timer = lambda: now[0]
    bus.fire("before_train")
    now[0] = 95.0
    bus.on("after_train_iter", when=every(10, unit="seconds"))(lambda run: called.append(now[0]))
    for second in (96.0, 99.0, 101.0, 109.0, 111.0):
        bus.fire("after_train_iter")
        now[0] = second
        bus.fire("after_train_iter")
    assert called == [101.0, 111.0]


def test_first_minute_is_between_one_and_sixty() -> None:
    now, called = [0.0], []
    bus = HookBus()
    bus.current.clock.timer = lambda: now[0]
    bus.on("after_train_iter", when=between(1, 60, unit="seconds"))(lambda run: called.append(now[0]))
    bus.fire("before_train")
    for second in (0.0, 30.0, 59.9, 60.0, 61.0):
        now[0] = second
        bus.fire("after_train_iter")
    assert called == [0.0, 30.0, 59.9]
