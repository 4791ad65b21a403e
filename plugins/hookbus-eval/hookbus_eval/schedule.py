"""Validation schedule: an interval that changes at milestones, and the end of the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hookbus import CounterView, Schedule, Unit, between, every


@dataclass(frozen=True, repr=False)
class AtEnd(Schedule):
    """Schedule that is due when the run reaches its limit, but not if this truncates an epoch that is counted.

    Unlike `last` it requires no known limit: in a run without a limit it is never due.

    Attributes:
        unit: Unit that is counted.
        is_fallback: Whether another listener is due at the end as well, so that this one need not be.
    """

    unit: Unit
    is_fallback: bool = False

    def units(self) -> set[Unit | None]:
        """Return the unit."""
        return {self.unit}

    def due(self, view: CounterView) -> bool:
        """Return whether the run has reached its limit."""
        return view.is_counted(self.unit) and view.clock.is_at_limit

    def next_due(self, number: int, limit: int | None) -> int:
        """Return the limit if it is known."""
        if limit is None:
            # The end of an epoch may be the limit in iterations, but no iteration is known to be the limit in epochs.
            return number + 1 if self.unit == "epoch" else self.NEVER
        return max(limit, number + 1)

    def is_out_of_reach(self, last_number: Callable[[Unit | None], int | None]) -> bool:
        """Return whether this schedule is certainly never due in a run, and no other one replaces it."""
        return not self.is_fallback and super().is_out_of_reach(last_number)

    def __repr__(self) -> str:
        return "at_end"


def build_validation_schedule(interval: int, start: int, changes: Sequence[tuple[int, int]], unit: Unit) -> Schedule:
    """Build the schedule of the validations.

    A number of completed units `n` is due if `n >= start` and `n - start` is a multiple of the interval in effect.

    Args:
        interval: Interval before the first milestone.
        start: First number that is due; 0 for the first multiple of the interval.
        changes: (milestone, interval) pairs in ascending order; an interval is in effect from its milestone on.
        unit: Unit that is counted.

    Returns:
        A schedule in this unit.
    """
    stages = [(1, interval), *changes]
    ends = [milestone - 1 for milestone, _ in changes]
    due = _build_stage(*stages[-1], start, unit)
    # `ends` is one shorter: the last stage is unbounded and was handled above.
    for (first, stage_interval), end in zip(stages, ends, strict=False):
        # A milestone of 1 leaves the initial stage empty, and `between` requires a non-empty range.
        if first <= end:
            due = due | (_build_stage(first, stage_interval, start, unit) & between(first, end, unit=unit))
    return due


def _build_stage(first: int, interval: int, start: int, unit: Unit) -> Schedule:
    earliest = max(first, start)
    # `every` counts from its start, but all stages count from the common `start`: align to the next multiple.
    return every(interval, start=earliest + (start - earliest) % interval, unit=unit)
