"""When anything is due at a point: one comparison per unit, and the answer of looking at every event."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookbus import between, every, last, once
from hookbus.clock import Clock
from hookbus.dispatch.compiling import Listener
from hookbus.dispatch.due import Counter, Due
from hookbus.errors import ConfigError
from hookbus.lifecycle import POINTS
from hookbus.moment import PointMoment
from hookbus.when import Schedule

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
def test_skipping_what_the_comparisons_skip_misses_nothing(made: list[Schedule], epochs: list[list[bool]]) -> None:
    """Each epoch is a list of iterations, which make an update or do not."""
    clock = Clock()
    clock.counts_iterations = False
    clock.max_iters = sum(map(len, epochs))
    due = Due(AFTER_ITER, clock, [listener(each) for each in made])
    names = {f"_counter_{i}": counter for i, counter in enumerate(due.counters)}
    tests = [counter.test(name) for name, counter in names.items()]
    moment = PointMoment(clock, AFTER_ITER)
    for epoch in epochs:
        clock.begin_epoch()
        for updates in epoch:
            clock.begin_iter(None)
            if updates:
                clock.count_step()
            clock.end_iter(None)
            expected = [each.due(moment) for each in made]
            looked_at = any(eval(test, {"_clock": clock, **names}) for test in tests)
            assert (due.now() if looked_at else [False] * len(made)) == expected
        clock.end_epoch()


def test_listeners_of_one_unit_share_a_counter() -> None:
    made = [every(3), every(5, unit="iter"), every(2, unit="batch"), every(3) | every(4, unit="step")]
    assert len(Due(AFTER_ITER, Clock(), [listener(each) for each in made]).counters) == 3


def test_equal_schedules_are_asked_once() -> None:
    asked: list[str] = []

    class Asked(Schedule):
        def __eq__(self, other: object) -> bool:
            return isinstance(other, Asked)

        def due(self, moment: object) -> bool:
            asked.append("due")
            return True

    clock = Clock()
    clock.end_iter(None)
    made = [Asked(), every(3), Asked()]
    assert Due(AFTER_ITER, clock, [listener(each) for each in made]).now() == [True, False, True]
    assert asked == ["due"]


@pytest.mark.parametrize(
    ("unit", "source"),
    [
        ("iter", "_clock.iter >= c.next"),
        ("batch", "_clock.batch >= c.next or _clock.batch <= c.seen"),
        ("step", "_clock.steps_done >= c.next"),
        ("seconds", "True"),
        (None, "True"),
    ],
)
def test_the_comparison_is_with_what_the_clock_counts(unit: str, source: str) -> None:
    assert Counter(PointMoment(Clock(), AFTER_ITER), unit, [every(3)]).test("c") == source  # type: ignore[arg-type]


def test_a_schedule_that_does_not_hold_names_hook_and_point() -> None:
    clock = Clock()
    clock.end_iter(None)
    with pytest.raises(ConfigError, match="hook 'a' at after_train_iter: when=last: the run has no known limit"):
        Due(AFTER_ITER, clock, [listener(last)]).now()
