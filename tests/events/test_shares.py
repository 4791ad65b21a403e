"""Tests of schedules by share of the run: the iterations are computed in integers, and not as in the implementation."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from hookbus import Hook, HookBus, HookConfig, Run, Trainer, between, every, hookimpl, last, once
from hookbus._events.ordering import Listener
from hookbus._events.schedule_gate import ScheduleGate
from hookbus._events.schedules import NEVER, Schedule
from hookbus._run.clock import Clock
from hookbus._run.point_counters import PointCounters
from hookbus.errors import ConfigError, HookbusError
from hookbus.lifecycle import POINTS

from .test_schedules import Moment, due_numbers

AFTER_ITER = POINTS["after_train_iter"]

lengths = st.integers(1, 200)
denominators = st.integers(1, 60)


@pytest.mark.parametrize(
    ("schedule", "length", "numbers"),
    [
        (every(0.1), 100, [10, 20, 30, 40, 50, 60, 70, 80, 90, 100]),
        (every(0.1), 12, [2, 3, 4, 5, 6, 8, 9, 10, 11, 12]),  # 1.2, 2.4, 3.6, ... rounded up
        (every(0.1), 3, [1, 2, 3]),
        (every(1 / 3), 10, [4, 7, 10]),
        (every(0.3), 10, [3, 6, 9]),
        (every(0.4), 10, [4, 8]),
        (every(1.0), 7, [7]),
        (every(0.25, start=0.5), 8, [4, 6, 8]),
        (every(0.25, start=1), 8, [1, 3, 5, 7]),
        (every(3, start=0.5), 10, [5, 8]),
        (once(0.5), 10, [5]),
        (once(0.5), 11, [6]),
        (once(0.1, 3, 1.0), 10, [1, 3, 10]),
        (between(0.0, 0.2), 10, [1, 2]),
        (between(0.5, 0.7), 10, [5, 6, 7]),
        (between(0.85, 1.0), 10, [9, 10]),
        (between(3, 0.4), 10, [3, 4]),
        (every(0.2) & between(0.5, 1.0), 10, [6, 8, 10]),
        (once(0.5) | last, 9, [5, 9]),
        (~between(0.2, 1.0), 10, [1]),
    ],
    ids=repr,
)
def test_share_is_due_where_it_is_complete(schedule: Schedule, length: int, numbers: list[int]) -> None:
    assert due_numbers(schedule, up_to=length, end=length) == numbers


def completed(number: int, share: Fraction, length: int) -> int:
    """Return how many multiples of a share are complete after `number` of `length` iterations."""
    return number * share.denominator // (share.numerator * length)


@settings(deadline=None)
@given(lengths, denominators, st.data())
def test_share_is_due_whenever_a_multiple_becomes_complete(length: int, denominator: int, data: st.DataObject) -> None:
    share = Fraction(data.draw(st.integers(1, denominator)), denominator)
    expected = [n for n in range(1, length + 1) if completed(n, share, length) > completed(n - 1, share, length)]
    assert due_numbers(every(float(share)), up_to=length, end=length) == expected
    assert expected[-1:] == [length] or 1 % share  # a share that divides the run is due in its last iteration
    assert due_numbers(once(float(share)), up_to=length, end=length) == expected[:1]


shares = st.builds(lambda a, b: min(a, b) / max(a, b), denominators, denominators)
schedules = st.recursive(
    st.one_of(
        st.builds(every, shares),
        st.builds(lambda s, n: every(s, start=n), shares, st.integers(1, 9)),
        st.builds(once, shares, shares),
        st.builds(lambda a, b: between(min(a, b), max(a, b)), shares, shares),
        st.builds(every, st.integers(1, 9)),
    ),
    lambda inner: st.one_of(
        st.builds(lambda a, b: a & b, inner, inner),
        st.builds(lambda a, b: a | b, inner, inner),
        inner.map(lambda a: ~a),
    ),
    max_leaves=3,
)


@settings(deadline=None)
@given(schedules, st.integers(0, 60), lengths)
def test_share_is_not_due_before_next_due(schedule: Schedule, number: int, length: int) -> None:
    following = schedule.next_due(number, length)
    assert following > number
    assert not any(schedule.due(Moment(n, end=length)) for n in range(number + 1, min(following, length + 1)))
    assert schedule.next_due(number, None) > number


def train(clock: Clock, schedule: Schedule, stop: int, lengths: list[int]) -> list[int]:
    """Train up to an iteration, in epochs of certain lengths, and return the due iterations."""
    gate = build_gate(clock, schedule)
    due = []
    for length in lengths[clock.epochs_done :]:
        clock.begin_epoch()
        while clock.iters_done < clock.epoch_first_iter + length:
            if clock.iters_done == stop:
                return due
            clock.begin_iter(None)
            clock.end_iter(None)
            counter = gate.counters[0]
            if eval(counter.source("counter"), {"_clock": clock, "counter": counter}) and gate.due_listeners()[0]:
                due.append(clock.iters_done)
        clock.end_epoch()
    return due


def build_gate(clock: Clock, schedule: Schedule) -> ScheduleGate:
    listener = Listener("a", None, AFTER_ITER.name, print, (), schedule=schedule)
    return ScheduleGate(PointCounters(clock, AFTER_ITER), [(listener, schedule)])


@settings(deadline=None)
@given(schedules, st.integers(1, 9), st.integers(1, 5), st.data())
def test_resumed_run_is_due_at_the_same_iterations(
    schedule: Schedule, length: int, epochs: int, data: st.DataObject
) -> None:
    def start() -> Clock:
        clock = Clock()
        clock.max_epochs, clock.epoch_length = epochs, length
        return clock

    stop = data.draw(st.integers(0, epochs * length))
    whole = train(start(), schedule, -1, [length] * epochs)
    assert whole == due_numbers(schedule, up_to=epochs * length, end=epochs * length)
    first, second = start(), start()
    due = train(first, schedule, stop, [length] * epochs)
    second.load_state_dict(first.state_dict())
    assert due + train(second, schedule, -1, [length] * epochs) == whole


def build_trainer(**settings: Any) -> Trainer:
    """Return a Trainer with 5 iterations per epoch."""
    model, batches = nn.Linear(2, 1), [(torch.ones(2, 2), torch.ones(2, 1))] * 5
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"work_dir": None, "default_hooks": False, **settings}
    return Trainer(model, optimizer, nn.functional.mse_loss, batches, **options)


def test_shares_count_in_the_unit_of_the_point() -> None:
    trainer = build_trainer(epochs=4, val_loader=[(torch.ones(2, 2), torch.ones(2, 1))])
    due: dict[str, list[int]] = {}

    def record(point: str, when: Schedule) -> None:
        trainer.bus.on(point, when=when, name=point)(lambda run: due.setdefault(point, []).append(run.iters_done))

    record("after_train_iter", every(0.25))
    record("after_epoch", every(0.5))
    record("before_val", once(0.75, unit="epoch"))
    record("after_optimizer_step", between(0.0, 0.1, unit="iter"))
    trainer.fit()
    assert due == {
        "after_train_iter": [5, 10, 15, 20],
        "after_epoch": [10, 20],
        "before_val": [15],
        "after_optimizer_step": [0, 1],  # within the first two iterations
    }


@pytest.mark.parametrize("limits", [{"epochs": 1, "epoch_length": 8}, {"epochs": 1}])
def test_shares_of_a_loop_that_reports_no_epochs(limits: dict[str, int]) -> None:
    bus, due = HookBus(), []
    bus.on("after_train_iter", when=every(0.25))(lambda run: due.append(run.iters_done))
    with bus.run(model=nn.Linear(1, 1), **limits) as run:
        for i, batch in run.batches([torch.ones(2, 1)] * 8):
            bus.emit("before_train_iter", batch_idx=i, batch=batch)
            bus.emit("after_train_iter", batch_idx=i, batch=batch)
    assert due == [2, 4, 6, 8]


class Halves(Hook):
    class Config(HookConfig):
        share: float = 0.5

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.due: list[int] = []

    @hookimpl(when=every("share"))
    def after_train_iter(self, run: Run) -> None:
        self.due.append(run.iters_done)


def test_shares_of_settings_and_run_files() -> None:
    hooks = [Halves(name="a"), Halves(name="b", share=0.2), Halves(name="c", when="every(0.1) & between(0.4, 0.6)")]
    build_trainer(epochs=2, hooks=hooks).fit()
    assert [hook.due for hook in hooks] == [[5, 10], [2, 4, 6, 8, 10], [4, 5, 6]]
    with pytest.raises(HookbusError, match=r"every\('share'\), share=1.5: expected an integer >= 1, or a share"):
        HookBus([Halves(share=1.5)])


def test_share_of_a_custom_loop_uses_the_length_of_its_loader() -> None:
    bus, hook = HookBus(), Halves(share=0.25)
    bus.register(hook)
    with bus.run(epochs=2) as run:
        for _ in run.epochs():
            for _, batch in run.batches([torch.ones(1, 2)] * 6):
                bus.emit("after_train_iter", batch=batch)
    assert hook.due == [3, 6, 9, 12]


def test_share_of_epochs_that_end_early_uses_their_length() -> None:
    bus, hook = HookBus(), Halves(share=0.25)
    bus.register(hook)
    with bus.run(epochs=4, epoch_length=10) as run:
        for epoch in run.epochs():
            for _ in range(10 if epoch < 1 else 6):
                bus.emit("after_train_iter")
    # A quarter of 40 iterations, of 10 + 6 + 2 * 10 = 36 after the second epoch, and of 32 after the third epoch.
    assert hook.due == [10, 18, 24]


@pytest.mark.parametrize(
    ("limit", "when", "message"),
    [
        ({}, every(0.1), "when=every(0.1): the run has no known limit"),
        ({}, every(2) | once(0.5), "when=once(0.5): the run has no known limit"),
        ({"iterations": 9}, once(0.5, unit="step"), "only in iterations. Use once(0.5, unit='iter')"),
        ({"iterations": 9}, between(0.1, 0.5, unit="epoch"), "Use between(0.1, 0.5, unit='iter')"),
    ],
    ids=str,
)
def test_share_of_an_unknown_length_is_refused_before_training(limit: Any, when: Schedule, message: str) -> None:
    bus = HookBus()
    bus.on("after_train_iter", when=when)(lambda run: None)
    with pytest.raises(ConfigError) as caught, bus.run(**limit):
        pytest.fail("the run has begun")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "make",
    [lambda: every(0.0), lambda: every(1.01), lambda: once(-0.5), lambda: between(0.0, 1.5), lambda: every(1e-9)],
)
def test_invalid_share_raises(make: Any) -> None:
    with pytest.raises(ConfigError, match="a share of the run"):
        make()


def test_bounds_of_between_are_compared_if_both_are_shares() -> None:
    with pytest.raises(ConfigError, match=r"between\(0.5, 0.4\): never due"):
        between(0.5, 0.4)
    assert between(100, 0.5).next_due(0, 300) == 100
    assert between(100, 0.5).next_due(150, 300) == NEVER
