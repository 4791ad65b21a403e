"""Numbers at which a validation is due."""

from typing import get_args

import hypothesis
import pytest
from hypothesis import strategies as st

from hookbus._events.points import Unit
from hookbus_eval.schedule import build_validation_schedule


class Number:
    """Moment at which one number is completed, in any unit."""

    def __init__(self, number: int) -> None:
        self._number = number

    def is_counted(self, unit: Unit | None) -> bool:
        return True

    def current(self, unit: Unit | None) -> int:
        return self._number

    def range(self, unit: Unit | None) -> tuple[int, int]:
        return self._number, self._number

    def limit(self, unit: Unit | None) -> int | None:
        return None


def get_due_numbers(interval: int, start: int, changes: list[tuple[int, int]], until: int) -> list[int]:
    schedule = build_validation_schedule(interval, start, changes, "epoch")
    return [number for number in range(1, until + 1) if schedule.due(Number(number))]


@pytest.mark.parametrize(
    ("interval", "start", "changes", "expected"),
    [
        (1, 0, [], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
        (3, 0, [], [3, 6, 9]),
        (3, 1, [], [1, 4, 7, 10]),
        (3, 5, [], [5, 8]),
        (2, 10, [], [10]),
        (10, 0, [(4, 1)], [4, 5, 6, 7, 8, 9, 10]),
        (2, 0, [(5, 3), (10, 1)], [2, 4, 6, 9, 10]),
        (2, 1, [(5, 3)], [1, 3, 7, 10]),
        (4, 7, [(3, 1)], [7, 8, 9, 10]),
        (5, 0, [(1, 4)], [4, 8]),
    ],
)
def test_validation_is_due_at_multiples_of_the_interval_from_the_start_on(
    interval: int, start: int, changes: list[tuple[int, int]], expected: list[int]
) -> None:
    assert get_due_numbers(interval, start, changes, 10) == expected


CHANGES = st.dictionaries(st.integers(1, 30), st.integers(1, 7), max_size=3).map(
    lambda intervals: sorted(intervals.items())
)


@hypothesis.given(st.integers(1, 7), st.integers(0, 12), CHANGES)
def test_schedule_matches_the_definition_for_each_number(
    interval: int, start: int, changes: list[tuple[int, int]]
) -> None:
    expected = []
    for number in range(1, 41):
        current = interval
        for milestone, changed in changes:
            if number >= milestone:
                current = changed
        if number >= start and (number - start) % current == 0:
            expected.append(number)
    assert get_due_numbers(interval, start, changes, 40) == expected


@hypothesis.given(st.integers(1, 7), st.integers(0, 12), CHANGES)
def test_no_number_is_due_before_the_following_one(interval: int, start: int, changes: list[tuple[int, int]]) -> None:
    schedule = build_validation_schedule(interval, start, changes, "iter")
    expected = get_due_numbers(interval, start, changes, 40)
    for number in range(41):
        following = schedule.next_due(number, None)
        assert not [due for due in expected if number < due < following]


@pytest.mark.parametrize("unit", get_args(Unit))
def test_schedule_counts_in_its_unit(unit: Unit) -> None:
    assert build_validation_schedule(2, 1, [(5, 1)], unit).units() == {unit}
