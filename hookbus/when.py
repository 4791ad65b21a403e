"""When is a listener due? Schedules as data.

`every(50)`, `between(1, 1000)`, `once(12)` and `last`, combined by `&`, `|` and `~`. They count the number
in progress, from 1, in the unit of the point (iterations at `before_train_iter`, epochs at `after_epoch`,
...) unless `unit=` says otherwise, and give the same answer before and after: `every(2)` is due at
iterations 2, 4, 6 at `before_train_iter` as well as at `after_train_iter`. A schedule keeps no state: what
is due follows from the clock alone, so a resumed run goes on exactly where it was.

A unit coarser than the point works as a filter (every iteration of a due epoch); `step` at an iteration
point means the iteration that makes the update, so `every(10, unit="step")` is due once per ten updates
however many micro-batches an update takes.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from hookbus._schedule_numbers import check_number, checked_unit, field_value
from hookbus.errors import ConfigError
from hookbus.lifecycle import Unit

if TYPE_CHECKING:
    from hookbus.hook import HookConfig

__all__ = ["NEVER", "Schedule", "between", "every", "last", "once"]

NEVER = sys.maxsize
"""The number that is never reached."""


class Moment(Protocol):
    """What a schedule may ask of the clock; `unit` None is the point's own."""

    def counts(self, unit: Unit | None) -> bool:
        """Whether the unit counts at this event; False for epochs where one was cut."""

    def number(self, unit: Unit | None) -> int:
        """The number in progress, from 1; 0 where there is none."""

    def span(self, unit: Unit | None) -> tuple[int, int]:
        """The first and last number that this event completes or opens; first > last for none."""

    def limit(self, unit: Unit | None) -> int | None:
        """The last number of the run, None where it is not known."""


@dataclass(frozen=True)
class Schedule:
    """When a listener is due. Use `every`, `between`, `once`, `last` to make one."""

    def due(self, moment: Moment) -> bool:
        """Whether a listener is due at this event."""
        raise TypeError(f"{type(self).__name__} must say when it is due")

    def following(self, number: int, limit: int | None) -> int:
        """A number greater than `number` before which nothing is due; `NEVER` if nothing is."""
        return number + 1

    def units(self) -> set[Unit | None]:
        """The units that this schedule counts in."""
        return {None}

    def check_end(self, moment: Moment) -> None:
        """See, before a run begins, that it ends in the units whose end this schedule asks for.

        Raises:
            ConfigError: the end is not known.
        """

    def resolve(self, config: HookConfig | None) -> Schedule:
        """Replace names of config fields, as in `every("interval")`, by their values.

        Raises:
            ConfigError: there is no such field, its value is no count, or there is no config at all.
        """
        return self

    def __and__(self, other: Schedule) -> Schedule:
        return Both(self, other) if isinstance(other, Schedule) else NotImplemented

    def __or__(self, other: Schedule) -> Schedule:
        return Either(self, other) if isinstance(other, Schedule) else NotImplemented

    def __invert__(self) -> Schedule:
        return Not(self)

    def __bool__(self) -> bool:
        raise TypeError("Schedules are combined by &, | and ~; and, or and not would drop one of them.")


@dataclass(frozen=True)
class Counted(Schedule):
    """A schedule that counts in one unit."""

    unit: Unit | None

    def units(self) -> set[Unit | None]:
        return {self.unit}

    def _unit_text(self) -> str:
        return f", unit={self.unit!r}" if self.unit else ""


@dataclass(frozen=True, repr=False)
class Every(Counted):
    interval: int | str | None
    start: int | str | None

    def __post_init__(self) -> None:
        check_number(self.interval, repr(self), optional=True)
        check_number(self.start, repr(self), optional=True)

    def due(self, moment: Moment) -> bool:
        first, last = moment.span(self.unit)
        return first <= last and self.following(first - 1, None) <= last

    def following(self, number: int, limit: int | None) -> int:
        if self.interval is None:
            return NEVER
        interval, start = int(self.interval), int(self.interval if self.start is None else self.start)
        if number < start:
            return start
        return start + ((number - start) // interval + 1) * interval

    def resolve(self, config: HookConfig | None) -> Schedule:
        interval = field_value(config, self.interval, self, optional=True)
        return replace(self, interval=interval, start=field_value(config, self.start, self, optional=True))

    def __repr__(self) -> str:
        start = "" if self.start is None else f", start={self.start!r}"
        return f"every({self.interval!r}{start}{self._unit_text()})"


@dataclass(frozen=True, repr=False)
class Between(Counted):
    first: int | str
    final: int | str

    def __post_init__(self) -> None:
        check_number(self.first, repr(self), least=0)
        check_number(self.final, repr(self), least=0)
        if isinstance(self.first, int) and isinstance(self.final, int) and self.first > self.final:
            raise ConfigError([f"{self!r} is never due: the first number is greater than the last."])

    def due(self, moment: Moment) -> bool:
        return max(int(self.first), 1) <= moment.number(self.unit) <= int(self.final)

    def following(self, number: int, limit: int | None) -> int:
        if number < int(self.first):
            return int(self.first)
        return number + 1 if number < int(self.final) else NEVER

    def resolve(self, config: HookConfig | None) -> Schedule:
        first, final = field_value(config, self.first, self, least=0), field_value(config, self.final, self, least=0)
        return replace(self, first=first, final=final)

    def __repr__(self) -> str:
        return f"between({self.first!r}, {self.final!r}{self._unit_text()})"


@dataclass(frozen=True, repr=False)
class Once(Counted):
    numbers: tuple[int | str, ...]

    def __post_init__(self) -> None:
        for number in self.numbers:
            check_number(number, repr(self))

    def due(self, moment: Moment) -> bool:
        first, last = moment.span(self.unit)
        return any(first <= int(n) <= last for n in self.numbers)

    def following(self, number: int, limit: int | None) -> int:
        return min((int(n) for n in self.numbers if int(n) > number), default=NEVER)

    def resolve(self, config: HookConfig | None) -> Schedule:
        return replace(self, numbers=tuple(field_value(config, n, self) for n in self.numbers))

    def __repr__(self) -> str:
        return f"once({', '.join(map(repr, self.numbers))}{self._unit_text()})"


@dataclass(frozen=True, repr=False)
class Last(Counted):
    def due(self, moment: Moment) -> bool:
        first, final = moment.span(self.unit)
        return first <= self._end(moment) <= final

    def check_end(self, moment: Moment) -> None:
        self._end(moment)

    def _end(self, moment: Moment) -> int:
        limit = moment.limit(self.unit)
        if limit is None:
            raise ConfigError([_no_end(self, moment)])
        return limit

    def following(self, number: int, limit: int | None) -> int:
        if limit is None:
            return number + 1
        return limit if number < limit else NEVER

    def __call__(self, *, unit: Unit | None = None) -> Schedule:
        """`last(unit="epoch")`: the last one in another unit than the point's."""
        return Last(unit=checked_unit(unit))

    def __repr__(self) -> str:
        return f"last(unit={self.unit!r})" if self.unit else "last"


@dataclass(frozen=True, repr=False)
class Pair(Schedule):
    """Two schedules, combined."""

    left: Schedule
    right: Schedule

    def units(self) -> set[Unit | None]:
        return self.left.units() | self.right.units()

    def check_end(self, moment: Moment) -> None:
        self.left.check_end(moment)
        self.right.check_end(moment)

    def resolve(self, config: HookConfig | None) -> Schedule:
        return replace(self, left=self.left.resolve(config), right=self.right.resolve(config))


@dataclass(frozen=True, repr=False)
class Both(Pair):
    def due(self, moment: Moment) -> bool:
        return self.left.due(moment) and self.right.due(moment)

    def following(self, number: int, limit: int | None) -> int:
        return max(self.left.following(number, limit), self.right.following(number, limit))

    def __repr__(self) -> str:
        return f"({self.left!r} & {self.right!r})"


@dataclass(frozen=True, repr=False)
class Either(Pair):
    def due(self, moment: Moment) -> bool:
        return self.left.due(moment) or self.right.due(moment)

    def following(self, number: int, limit: int | None) -> int:
        return min(self.left.following(number, limit), self.right.following(number, limit))

    def __repr__(self) -> str:
        return f"({self.left!r} | {self.right!r})"


@dataclass(frozen=True, repr=False)
class Not(Schedule):
    inner: Schedule

    def due(self, moment: Moment) -> bool:
        return all(map(moment.counts, self.units())) and not self.inner.due(moment)

    def units(self) -> set[Unit | None]:
        return self.inner.units()

    def check_end(self, moment: Moment) -> None:
        self.inner.check_end(moment)

    def resolve(self, config: HookConfig | None) -> Schedule:
        return Not(self.inner.resolve(config))

    def __repr__(self) -> str:
        return f"~{self.inner!r}"


def every(interval: int | str | None, *, start: int | str | None = None, unit: Unit | None = None) -> Schedule:
    """Due at `interval`, 2 * `interval`, ...; with `start` at start, start + interval, ...

    Args:
        interval: a positive count, the name of a field of the hook's config, or None for never.
        start: the first number that is due; default `interval`.
        unit: what is counted: "iter", "batch", "step", "epoch", "sample" or "seconds"; default the point's.

    Raises:
        ConfigError: `interval` or `start` is less than 1.
    """
    return Every(checked_unit(unit), interval, start)


def between(first: int | str, final: int | str, *, unit: Unit | None = None) -> Schedule:
    """Due from `first` to `final`, both included.

    Raises:
        ConfigError: one of them is less than 0, or `first` is greater than `final`.
    """
    return Between(checked_unit(unit), first, final)


def once(*numbers: int | str, unit: Unit | None = None) -> Schedule:
    """Due at each of these numbers, and `once()` at number 1.

    Raises:
        ConfigError: one of them is less than 1.
    """
    return Once(checked_unit(unit), numbers or (1,))


last = Last(unit=None)
"""Due at the last number of the run; an error where the run has no known end. `last(unit="epoch")` works."""


def _no_end(schedule: Schedule, moment: Moment) -> str:
    """Why `last` means nothing, and in which units it would."""
    ends: dict[Unit, str] = {"iter": "iterations", "epoch": "epochs"}
    known = [unit for unit in ends if moment.limit(unit) is not None]
    if known:
        where, instead = " and ".join(ends[unit] for unit in known), " or ".join(repr(Last(unit)) for unit in known)
        return (
            f"when={schedule!r} needs a run whose end is known in what it counts, and the end of this one is known in "
            f"{where}: write {instead}."
        )
    return (
        f"when={schedule!r} needs a run whose end is known: give epochs= and a training loader with a length, or "
        "iterations=, and count in epochs or iterations: the last update, sample or second is not known before it has "
        "come."
    )
