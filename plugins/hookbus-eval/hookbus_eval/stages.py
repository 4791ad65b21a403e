"""When is a validation due, where the interval changes on the way?"""

from __future__ import annotations

from collections.abc import Sequence

from hookbus.lifecycle import Unit
from hookbus.when import Schedule, between, every

__all__ = ["validations_due"]


def validations_due(interval: int, start: int, changes: Sequence[tuple[int, int]], unit: Unit) -> Schedule:
    """Due when the number done is at least `start`, and `done - start` is a multiple of the interval.

    Args:
        interval: of the beginning.
        start: the first number that is due; 0: the first multiple of the interval.
        changes: (milestone, interval) pairs in ascending order: from this number on, this interval.
        unit: what is counted.
    """
    stages = [(1, interval), *changes]
    ends = [milestone - 1 for milestone, _ in changes]
    due = _stage(*stages[-1], start, unit)
    for (first, each), end in zip(stages, ends, strict=False):
        if first <= end:
            due = due | (_stage(first, each, start, unit) & between(first, end, unit=unit))
    return due


def _stage(first: int, interval: int, start: int, unit: Unit) -> Schedule:
    earliest = max(first, start)
    return every(interval, start=earliest + (start - earliest) % interval, unit=unit)
