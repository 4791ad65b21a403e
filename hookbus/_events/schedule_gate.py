"""Evaluation of the schedules of a point, with one comparison per unit for any number of scheduled listeners."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from hookbus._events.ordering import Listener
from hookbus._events.points import CounterView, Unit
from hookbus._events.schedules import Schedule
from hookbus.errors import ConfigError


class ScheduleCounter:
    """Schedules that count in one unit, and the attribute of the clock that counts the unit.

    Args:
        view: View of the counters from the point.
        unit: Unit, None for schedules that count in multiple units.
        schedules: The schedules.

    Attributes:
        next: Smallest value of the attribute at which a schedule may be due.
        last_value: Value of the attribute at the last evaluated event. A value that is not greater indicates a new
            loader.
    """

    __slots__ = ("_greatest", "_least", "_name", "_schedules", "_unit", "_view", "last_value", "next")

    def __init__(self, view: CounterView, unit: Unit | None, schedules: Sequence[Schedule]) -> None:
        self._view, self._unit, self._schedules = view, unit, schedules
        counter = view.get_counter(unit) if unit else None
        self._name, self._least, self._greatest = counter or ("", 0, 0)
        self.next = self.last_value = 0

    def source(self, name: str) -> str:
        """Return Python source that tests whether a schedule may be due; `"True"` if no attribute counts the unit.

        Args:
            name: Name of this object in the source. The clock is named `_clock`.
        """
        if not self._name:
            return "True"
        if self._unit == "batch":
            return f"_clock.batch >= {name}.next or _clock.batch <= {name}.last_value"
        return f"_clock.{self._name} >= {name}.next"

    def advance(self) -> None:
        """Compute the next value at which a schedule may be due."""
        if not self._name or self._unit is None:
            return
        # Several events may have the same number (the iterations of an epoch), so the current number may recur.
        self.last_value = attrgetter(self._name)(self._view.clock)
        number = self.last_value + self._least
        limit = self._view.limit(self._unit)
        following = min(schedule.next_due(number - 1, limit) for schedule in self._schedules)
        change = self._view.next_limit_change(self._unit, number)
        self.next = (following if change is None else min(following, change)) - self._greatest


class ScheduleGate:
    """Scheduled listeners of one point.

    Attributes:
        counters: Counters, one per unit of the schedules.
    """

    __slots__ = ("_listeners", "_schedule_indices", "_schedules", "_view", "counters")

    def __init__(self, view: CounterView, listeners: Sequence[tuple[Listener, Schedule]]) -> None:
        self._view, self._listeners = view, listeners
        self._schedules: list[Schedule] = []  # without duplicates, because hooks often have the same interval
        for _, schedule in listeners:
            if schedule not in self._schedules:
                self._schedules.append(schedule)
        self._schedule_indices = [self._schedules.index(schedule) for _, schedule in listeners]
        by_unit: dict[Unit | None, list[Schedule]] = {}
        for schedule in self._schedules:
            units = {unit or view.unit for unit in schedule.units()}
            # Reading the timer in every iteration is avoided unless a schedule depends on it.
            if "seconds" in units:
                view.clock.count_seconds()
            by_unit.setdefault(units.pop() if len(units) == 1 else None, []).append(schedule)
        self.counters = [ScheduleCounter(view, unit, schedules) for unit, schedules in by_unit.items()]

    def due_listeners(self) -> list[bool]:
        """Return which listeners are due at this event, and advance the counters.

        Raises:
            ConfigError: If a schedule requires a limit that the run does not have. The message contains the hook and
                the point.
            Exception: If the function of a condition raises one. A note contains the hook and the point.
        """
        due = [self._is_due(schedule) for schedule in self._schedules]
        for counter in self.counters:
            counter.advance()
        return [due[index] for index in self._schedule_indices]

    def _is_due(self, schedule: Schedule) -> bool:
        try:
            return schedule.due(self._view)
        except ConfigError as error:
            raise ConfigError(f"{self._locate(schedule)}: {problem}" for problem in error.problems) from None
        except Exception as error:
            error.add_note(f"Raised by when={schedule!r} of {self._locate(schedule)}.")
            raise

    def _locate(self, schedule: Schedule) -> str:
        """Return hook and point of the first listener with a schedule, for a message."""
        listener = next(listener for listener, other in self._listeners if other == schedule)
        return f"hook {listener.hook!r} at {listener.point}"
