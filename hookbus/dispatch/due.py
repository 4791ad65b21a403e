"""When is anything due at a point? One comparison per unit, however many listeners are scheduled there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hookbus.clock import Clock
from hookbus.errors import ConfigError
from hookbus.lifecycle import Point, Unit
from hookbus.moment import PointMoment
from hookbus.when import Schedule

__all__ = ["Counter", "Due"]


class Scheduled(Protocol):
    """A listener, as far as it matters here: who to name when its schedule does not hold."""

    hook: str
    point: str


class Counter:
    """Schedules that count in one unit, by the clock's attribute that counts it.

    Args:
        moment: the point's view of the clock.
        unit: the unit; None for schedules that count in several.
        schedules: the schedules.

    Attributes:
        next: the value of the attribute below which none of them is due.
        seen: its value at the last event that was looked at; one that is not greater began again with a new loader.
    """

    __slots__ = ("_greatest", "_least", "_moment", "_name", "_schedules", "_unit", "next", "seen")

    def __init__(self, moment: PointMoment, unit: Unit | None, schedules: Sequence[Schedule]) -> None:
        self._moment, self._unit, self._schedules = moment, unit, schedules
        counter = moment.counter(unit) if unit else None
        self._name, self._least, self._greatest = counter or ("", 0, 0)
        self.next = self.seen = 0

    def test(self, name: str) -> str:
        """Python source that says whether any of them may be due; no attribute may tell, then each event counts.

        Args:
            name: what this object is called there; the clock is `_clock`.
        """
        if not self._name:
            return "True"
        if self._unit == "batch":
            return f"_clock.batch >= {name}.next or _clock.batch <= {name}.seen"
        return f"_clock.{self._name} >= {name}.next"

    def advance(self) -> None:
        """Find the next value at which any of them may be due."""
        if not self._name or self._unit is None:
            return
        # Several events may stand for one number (the iterations of an epoch), so this one may come again.
        self.seen = getattr(self._moment.clock, self._name)
        number = self.seen + self._least
        limit = self._moment.next_limit(self._unit, number)
        self.next = min(each.following(number - 1, limit) for each in self._schedules) - self._greatest


class Due:
    """The scheduled listeners of one point.

    Args:
        point: the point.
        clock: the clock of the run.
        listeners: those with a schedule.

    Attributes:
        counters: one per unit in which they count.
    """

    __slots__ = ("_listeners", "_moment", "_places", "_schedules", "counters")

    def __init__(self, point: Point, clock: Clock, listeners: Sequence[tuple[Scheduled, Schedule]]) -> None:
        moment = self._moment = PointMoment(clock, point)
        self._listeners = listeners
        self._schedules: list[Schedule] = []  # equal ones once: hooks often have the same interval
        for _, schedule in listeners:
            if schedule not in self._schedules:
                self._schedules.append(schedule)
        self._places = [self._schedules.index(schedule) for _, schedule in listeners]
        by_unit: dict[Unit | None, list[Schedule]] = {}
        for schedule in self._schedules:
            units = {unit or moment.unit for unit in schedule.units()}
            if "seconds" in units:
                clock.count_seconds()
            by_unit.setdefault(units.pop() if len(units) == 1 else None, []).append(schedule)
        self.counters = [Counter(moment, unit, schedules) for unit, schedules in by_unit.items()]

    def now(self) -> list[bool]:
        """Which listeners are due at this event; the counters move on.

        Raises:
            ConfigError: a schedule needs what the run does not know; the message names the hook and the point.
        """
        due = [self._is_due(schedule) for schedule in self._schedules]
        for counter in self.counters:
            counter.advance()
        return [due[place] for place in self._places]

    def _is_due(self, schedule: Schedule) -> bool:
        try:
            return schedule.due(self._moment)
        except ConfigError as error:
            listener = next(listener for listener, other in self._listeners if other == schedule)
            who = f"hook {listener.hook!r} at {listener.point}"
            raise ConfigError(f"{who}: {problem}" for problem in error.problems) from None
