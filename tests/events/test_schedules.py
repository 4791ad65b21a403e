"""Tests of schedules: due numbers, next due numbers and operators."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookbus import HookConfig, between, every, last, once
from hookbus._events.points import Unit
from hookbus._events.schedules import NEVER, Schedule
from hookbus.errors import ConfigError

UNITS: list[Unit] = ["iter", "batch", "step", "epoch", "sample", "token", "seconds"]


@dataclass
class Moment:
    """Event that completes the numbers from `first` to `final` in every unit except those in `silent`."""

    first: int
    final: int | None = None
    end: int | None = None
    silent: set[Unit | None] = field(default_factory=set)

    def is_counted(self, unit: Unit | None) -> bool:
        return unit not in self.silent

    def current(self, unit: Unit | None) -> int:
        return self.first if self.is_counted(unit) else 0

    def range(self, unit: Unit | None) -> tuple[int, int]:
        final = self.first if self.final is None else self.final
        return (self.first, final) if self.is_counted(unit) else (1, 0)

    def counts(self, unit: Unit) -> bool:
        return True

    def limit(self, unit: Unit | None) -> int | None:
        return self.end


def due_numbers(schedule: Schedule, up_to: int = 12, end: int | None = 12) -> list[int]:
    return [n for n in range(1, up_to + 1) if schedule.due(Moment(n, end=end))]


@pytest.mark.parametrize(
    ("schedule", "numbers"),
    [
        (every(1), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]),
        (every(2), [2, 4, 6, 8, 10, 12]),
        (every(5), [5, 10]),
        (every(13), []),
        (every(None), []),
        (every(4, start=1), [1, 5, 9]),
        (every(2, start=7), [7, 9, 11]),
        (every(3, start=3), [3, 6, 9, 12]),
        (between(3, 5), [3, 4, 5]),
        (between(4, 4), [4]),
        (between(0, 2), [1, 2]),
        (between(11, 99), [11, 12]),
        (once(), [1]),
        (once(3), [3]),
        (once(9, 2, 2), [2, 9]),
        (last, [12]),
        (every(2) & between(3, 7), [4, 6]),
        (once(1) | every(5), [1, 5, 10]),
        (~between(2, 11), [1, 12]),
        (~every(2) & ~every(3), [1, 5, 7, 11]),
        (every(5) | last, [5, 10, 12]),
        (between(1, 4) & ~once(2) | once(8), [1, 3, 4, 8]),
    ],
    ids=repr,
)
def test_schedule_is_due_at_the_expected_numbers(schedule: Schedule, numbers: list[int]) -> None:
    assert due_numbers(schedule) == numbers


@pytest.mark.parametrize(
    ("schedule", "first", "final", "due"),
    [
        (every(10), 8, 12, True),
        (every(10), 11, 19, False),
        (every(10), 10, 10, True),
        (every(10), 5, 4, False),
        (every(10, start=3), 1, 3, True),
        (every(10, start=30), 8, 29, False),
        (once(6), 5, 9, True),
        (once(6), 7, 9, False),
        (last, 90, 110, True),
        (last, 90, 99, False),
    ],
    ids=repr,
)
def test_event_with_a_range_is_due_if_any_number_is_due(schedule: Schedule, first: int, final: int, due: bool) -> None:
    assert schedule.due(Moment(first, final, end=100)) is due


def test_last_raises_without_a_limit() -> None:
    with pytest.raises(ConfigError, match="when=last: the run has no known limit. Set `epochs`"):
        last.due(Moment(3, end=None))


@pytest.mark.parametrize("schedule", [last, ~last, last & every(2), every(2) | last(unit="epoch")], ids=repr)
def test_check_limit_raises_without_a_limit(schedule: Schedule) -> None:
    schedule.check_limit(Moment(1, end=9))
    with pytest.raises(ConfigError, match="the run has no known limit"):
        schedule.check_limit(Moment(1, end=None))


def test_check_limit_passes_for_schedules_without_last() -> None:
    (every(2) & between(1, 5) | once(3)).check_limit(Moment(1, end=None))


def test_schedule_in_an_uncounted_unit_is_not_due() -> None:
    truncated = Moment(4, end=4, silent={"epoch"})
    for schedule in (every(2, unit="epoch"), between(0, 9, unit="epoch"), once(4, unit="epoch"), last(unit="epoch")):
        assert not schedule.due(truncated)
        assert not (~schedule).due(truncated)
        assert (schedule | every(4, unit="iter")).due(truncated)


# -- next due number -----------------------------------------------------------------------------------

counts = st.integers(1, 9)
atoms = st.one_of(
    st.builds(lambda n, s: every(n, start=s), counts, st.none() | counts),
    st.builds(lambda a, n: between(a, a + n), st.integers(0, 9), counts),
    st.builds(lambda ns: once(*ns), st.lists(counts, max_size=3)),
    st.sampled_from([last, every(None)]),
)
schedules = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.builds(lambda a, b: a & b, inner, inner),
        st.builds(lambda a, b: a | b, inner, inner),
        st.builds(lambda a: ~a, inner),
    ),
    max_leaves=5,
)


@settings(deadline=None)
@given(schedules, st.integers(0, 20), st.integers(1, 25))
def test_schedule_is_not_due_before_next_due(schedule: Schedule, number: int, end: int) -> None:
    following = schedule.next_due(number, end)
    assert following > number
    assert all(not schedule.due(Moment(n, end=end)) for n in range(number + 1, min(following, 60)))


@settings(deadline=None)
@given(schedules, st.integers(0, 20))
def test_next_due_skips_no_due_number_if_the_limit_is_unknown(schedule: Schedule, number: int) -> None:
    following = schedule.next_due(number, None)
    moments = [Moment(n, end=end) for n in range(number + 1, min(following, 60)) for end in (n, n + 1)]
    assert not any(map(schedule.due, moments))


def test_next_due_returns_the_next_due_number() -> None:
    assert [every(50).next_due(n, None) for n in (0, 49, 50, 51)] == [50, 50, 100, 100]
    assert [every(10, start=3).next_due(n, None) for n in (0, 2, 3, 12, 13)] == [3, 3, 13, 13, 23]
    assert [between(5, 7).next_due(n, None) for n in (0, 4, 5, 6, 7)] == [5, 5, 6, 7, NEVER]
    assert [once(9, 4).next_due(n, None) for n in (0, 4, 9)] == [4, 9, NEVER]
    assert [last.next_due(n, 12) for n in (0, 11, 12)] == [12, 12, NEVER]
    assert every(None).next_due(3, None) == NEVER
    assert (every(50) & between(200, 300)).next_due(0, None) == 200
    assert (every(50) | once(7)).next_due(0, None) == 7


# -- operators -----------------------------------------------------------------------------------------


@settings(deadline=None)
@given(schedules, schedules)
def test_operators_behave_like_set_operations(a: Schedule, b: Schedule) -> None:
    numbers_a, numbers_b, everything = set(due_numbers(a)), set(due_numbers(b)), set(range(1, 13))
    assert set(due_numbers(a & b)) == numbers_a & numbers_b
    assert set(due_numbers(a | b)) == numbers_a | numbers_b
    assert set(due_numbers(~a)) == everything - numbers_a


@pytest.mark.parametrize("combine", [lambda s: s and last, lambda s: s or last, lambda s: not s])
def test_boolean_keywords_raise_for_schedules(combine: object) -> None:
    with pytest.raises(TypeError, match="cannot be combined by `and`, `or` and `not`"):
        combine(every(2))  # type: ignore[operator]


@pytest.mark.parametrize("other", [5, "every(3)", None])
def test_combining_a_schedule_with_another_type_raises(other: object) -> None:
    with pytest.raises(TypeError):
        every(2) & other  # type: ignore[operator]
    with pytest.raises(TypeError):
        every(2) | other  # type: ignore[operator]


def test_base_class_raises_without_due() -> None:
    with pytest.raises(TypeError, match="Schedule must implement `due`"):
        Schedule().due(Moment(1))
    assert Schedule().next_due(4, None) == 5
    assert Schedule().units() == {None}


# -- units ---------------------------------------------------------------------------------------------


def test_units_of_a_combination_are_the_union_of_its_parts() -> None:
    assert (every(2) & between(1, 3, unit="epoch") | ~last(unit="iter")).units() == {None, "epoch", "iter"}


@pytest.mark.parametrize("make", [lambda u: every(2, unit=u), lambda u: between(1, 2, unit=u), lambda u: last(unit=u)])
def test_unknown_unit_raises_and_suggests_a_unit(make: object) -> None:
    with pytest.raises(ConfigError, match="unknown unit 'epochs'. Did you mean 'epoch'?"):
        make("epochs")  # type: ignore[operator]


# -- invalid numbers -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: every(0), r"every\(0\): expected an integer >= 1, got 0"),
        (lambda: every(-2), r"every\(-2\): expected an integer >= 1, got -2"),
        (lambda: every(True), "expected an integer >= 1, got True"),
        (lambda: every(2.0), r"every\(2.0\): expected an integer >= 1, or a share of the run .*, got 2.0"),
        (lambda: every(2, start=0), r"every\(2, start=0\): expected an integer >= 1, got 0"),
        (lambda: between(-1, 3), "expected an integer >= 0, got -1"),
        (lambda: between(1, None), "expected an integer >= 0, got None"),
        (lambda: between(5, 4), r"between\(5, 4\): never due, because the first number is greater"),
        (lambda: once(0), r"once\(0\): expected an integer >= 1, got 0"),
        (lambda: once(3, None), "expected an integer >= 1, got None"),
        (lambda: every((2, 3)), r"every\(\(2, 3\)\): expected an integer >= 1, got \(2, 3\)"),
        (lambda: between((), 3), r"expected an integer >= 0, got \(\)"),
    ],
)
def test_invalid_number_raises(make: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()  # type: ignore[operator]


# -- fields of a config --------------------------------------------------------------------------------


class Settings(HookConfig):
    interval: int | None = 4
    begin: int = 2
    end: int = 9
    text: str = "hello"
    none: int | None = None
    zero: int = 0


@pytest.mark.parametrize(
    ("schedule", "resolved"),
    [
        (every("interval"), every(4)),
        (every("interval", start="begin", unit="step"), every(4, start=2, unit="step")),
        (every("none"), every(None)),
        (every(3, start="none"), every(3)),
        (between("begin", "end"), between(2, 9)),
        (between("zero", "end"), between(0, 9)),
        (once("end", 3), once(9, 3)),
        (last, last),
        (every("interval") & ~between("begin", 5) | last, every(4) & ~between(2, 5) | last),
    ],
    ids=repr,
)
def test_field_names_are_replaced_by_their_values(schedule: Schedule, resolved: Schedule) -> None:
    assert schedule.resolve(Settings()) == resolved


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (every("intervall"), "every('intervall'): Settings has no field 'intervall'. Did"),
        (every("zero"), "every('zero'), zero=0: expected an integer >= 1, got 0"),
        (every(2, start="zero"), "zero=0"),
        (every("text"), "every('text'): invalid field 'text', expected a number, got 'hello'"),
        (once("none"), "once('none'), none=None"),
        (between("begin", "none"), "between('begin', 'none'), none=None"),
        (between("end", "begin"), "between(9, 2): never due"),
    ],
    ids=repr,
)
def test_invalid_field_raises_with_its_name(schedule: Schedule, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        schedule.resolve(Settings())
    assert message in str(caught.value)


def test_field_name_without_a_config_raises() -> None:
    assert (every(3) & last).resolve(None) == every(3) & last
    with pytest.raises(ConfigError, match=r"every\('interval'\): no config contains the field 'interval'"):
        (last & every("interval")).resolve(None)
