"""Tests of the evaluation of schedules: the counters must not skip a due event."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookbus import between, every, last, once
from hookbus._events.ordering import Listener
from hookbus._events.schedule_gate import ScheduleCounter, ScheduleGate
from hookbus._events.schedules import Schedule
from hookbus._run.clock import Clock
from hookbus._run.point_counters import PointCounters
from hookbus.errors import ConfigError
from hookbus.lifecycle import POINTS

AFTER_ITER = POINTS["after_train_iter"]

units = st.sampled_from([None, "iter", "batch", "step", "sample"])
numbers = st.integers(1, 12)
simple = st.one_of(
    st.builds(lambda n, s, u: every(n, start=s, unit=u), numbers, st.none() | numbers, units),
    st.builds(lambda a, b, u: between(min(a, b), max(a, b), unit=u), numbers, numbers, units),
    st.builds(lambda a, b, u: once(a, b, unit=u), numbers, numbers, units),
    st.just(last),
)
schedules = st.recursive(
    simple,
    lambda inner: st.one_of(
        st.builds(lambda a, b: a & b, inner, inner),
        st.builds(lambda a, b: a | b, inner, inner),
        inner.map(lambda a: ~a),
    ),
    max_leaves=3,
)


def listener(schedule: Schedule) -> tuple[Listener, Schedule]:
    return Listener("a", None, AFTER_ITER.name, print, (), schedule=schedule), schedule


@given(st.lists(schedules, min_size=1, max_size=4), st.lists(st.lists(st.booleans(), max_size=14), max_size=3))
def test_counters_skip_only_events_without_due_schedules(
    listener_schedules: list[Schedule], epochs: list[list[bool]]
) -> None:
    """Each epoch is a list of iterations, True if the optimizer steps."""
    clock = Clock()
    clock.counts_iterations = False
    clock.max_iters = sum(map(len, epochs))
    due = ScheduleGate(PointCounters(clock, AFTER_ITER), list(map(listener, listener_schedules)))
    names = {f"_counter_{i}": counter for i, counter in enumerate(due.counters)}
    tests = [counter.source(name) for name, counter in names.items()]
    view = PointCounters(clock, AFTER_ITER)
    for epoch in epochs:
        clock.begin_epoch()
        for steps in epoch:
            clock.begin_iter(None)
            if steps:
                clock.count_step()
            clock.end_iter(None)
            expected = [schedule.due(view) for schedule in listener_schedules]
            evaluate = any(eval(test, {"_clock": clock, **names}) for test in tests)
            assert (due.due_listeners() if evaluate else [False] * len(listener_schedules)) == expected
        clock.end_epoch()


def test_listeners_of_one_unit_share_a_counter() -> None:
    listener_schedules = [every(3), every(5, unit="iter"), every(2, unit="batch"), every(3) | every(4, unit="step")]
    assert len(ScheduleGate(PointCounters(Clock(), AFTER_ITER), list(map(listener, listener_schedules))).counters) == 3


def test_equal_schedules_are_evaluated_once() -> None:
    evaluated: list[str] = []

    class Recording(Schedule):
        def __eq__(self, other: object) -> bool:
            return isinstance(other, Recording)

        def due(self, view: object) -> bool:
            evaluated.append("due")
            return True

    clock = Clock()
    clock.end_iter(None)
    listener_schedules = [Recording(), every(3), Recording()]
    assert ScheduleGate(PointCounters(clock, AFTER_ITER), list(map(listener, listener_schedules))).due_listeners() == [
        True,
        False,
        True,
    ]
    assert evaluated == ["due"]


@pytest.mark.parametrize(
    ("unit", "source"),
    [
        ("iter", "_clock.iter >= c.next"),
        ("batch", "_clock.batch >= c.next or _clock.batch <= c.last_value"),
        ("step", "_clock.steps_done >= c.next"),
        ("seconds", "True"),
        (None, "True"),
    ],
)
def test_counter_source_compares_the_attribute_of_the_clock(unit: str, source: str) -> None:
    assert ScheduleCounter(PointCounters(Clock(), AFTER_ITER), unit, [every(3)]).source("c") == source  # type: ignore[arg-type]


def test_invalid_schedule_raises_with_hook_and_point() -> None:
    clock = Clock()
    clock.end_iter(None)
    with pytest.raises(ConfigError, match="hook 'a' at after_train_iter: when=last: the run has no known limit"):
        ScheduleGate(PointCounters(clock, AFTER_ITER), [listener(last)]).due_listeners()
