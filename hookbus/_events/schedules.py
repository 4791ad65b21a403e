"""Schedules: conditions under which a listener is due.

`every(50)`, `between(1, 1000)`, `once(12)` and `last` can be combined by `&`, `|` and `~`. They count from 1 in the
unit of the point (iterations at `before_train_iter`, epochs at `after_epoch`, ...) unless `unit=` is set. The result is
the same at the corresponding `before_*` and `after_*` points: `every(2)` is due at iterations 2, 4, 6 at both
`before_train_iter` and `after_train_iter`. Schedules are stateless and depend on the clock only, so a resumed run
continues them exactly.

A unit coarser than that of the point acts as a filter (every iteration of a due epoch). `step` at an iteration point
selects the iteration in which the optimizer steps: `every(10, unit="step")` is due once per ten optimizer steps, for
any number of accumulated micro-batches.

A float from 0 to 1 is a share of the run: in a run of n iterations, the share s is complete at iteration `ceil(s * n)`.
`hookbus._events.conditions` contains the schedules that depend on the run and not on its clock.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from math import ceil
from typing import Any, ClassVar, Protocol

from hookbus._events.points import CounterView, Point, Unit, parse_unit
from hookbus._events.shares import Number, check_number, is_share, to_position
from hookbus.errors import ConfigError, suggest_names

NEVER = sys.maxsize
"""Number that no counter reaches."""


class FieldConfig(Protocol):
    """Config of a plugin, whose fields schedules refer to by name.

    Attributes:
        model_fields: Fields by name.
    """

    model_fields: ClassVar[Mapping[str, Any]]


@dataclass(frozen=True)
class Schedule:
    """Condition under which a listener is due: the result of `every`, `between` and `once`, or a subclass.

    A subclass implements `due`, and `next_due` if events without a due listener are to cost nothing.

    Attributes:
        NEVER: Number that no counter reaches, for `next_due`.
    """

    NEVER: ClassVar[int] = NEVER

    def due(self, view: CounterView) -> bool:
        """Return whether a listener is due at this event.

        Args:
            view: Counters of the run at the point.
        """
        raise TypeError(f"{type(self).__name__} must implement `due`")

    def next_due(self, number: int, limit: int | None) -> int:
        """Return a number greater than `number` before which no event is due; `NEVER` if no further event is due.

        Args:
            number: Current number in the unit of the schedule.
            limit: Last number of the run, None if it is unknown.
        """
        return number + 1

    def units(self) -> set[Unit | None]:
        """Return the units that this schedule counts in."""
        return {None}

    def is_out_of_reach(self, last_number: Callable[[Unit | None], int | None]) -> bool:
        """Return whether this schedule is certainly never due in a run.

        Args:
            last_number: Function that returns the last number of the run in a unit, None if it is unknown.
        """
        units = self.units()
        last = last_number(*units) if len(units) == 1 else None
        return last is not None and self.next_due(0, last) > last

    def check_limit(self, view: CounterView) -> None:
        """Check, before a run starts, that it has a limit in each unit whose limit this schedule uses.

        Args:
            view: Counters of the run at the point.

        Raises:
            ConfigError: If a limit is unknown.
        """

    def check_point(self, point: Point) -> None:
        """Check, at registration, that this schedule can be evaluated at a point.

        Args:
            point: Point of the listener.

        Raises:
            ConfigError: If it cannot.
        """

    def reads_run(self) -> bool:
        """Return whether this schedule depends on more than the clock, so that it may differ between ranks."""
        return False

    def resolve(self, config: FieldConfig | None) -> Schedule:
        """Replace the names of config fields, as in `every("interval")`, by their values.

        Args:
            config: Config of the hook, None if it has none.

        Raises:
            ConfigError: If a field does not exist, its value is invalid, or there is no config.
        """
        return self

    def __and__(self, other: Schedule) -> Schedule:
        return And(self, other) if isinstance(other, Schedule) else NotImplemented

    def __or__(self, other: Schedule) -> Schedule:
        return Or(self, other) if isinstance(other, Schedule) else NotImplemented

    def __invert__(self) -> Schedule:
        return Not(self)

    def __bool__(self) -> bool:
        # Without this, `a and b` would silently evaluate to `b`.
        raise TypeError("schedules cannot be combined by `and`, `or` and `not`. Use &, | and ~.")


@dataclass(frozen=True)
class Counted(Schedule):
    """Schedule that counts in a single unit. Its other fields are numbers, shares, or names of config fields.

    Attributes:
        minimum: Smallest valid number.
        optional: Whether None is a valid number.
    """

    minimum: ClassVar[int] = 1
    optional: ClassVar[bool] = False

    unit: Unit | None

    def __post_init__(self) -> None:
        for number in self._numbers():
            if not isinstance(number, str):
                self._check_number(number, repr(self))

    def units(self) -> set[Unit | None]:
        return {self.unit}

    def resolve(self, config: FieldConfig | None) -> Schedule:
        return replace(self, **{name: self._resolve(config, getattr(self, name)) for name in self._number_fields()})

    def _number_fields(self) -> Iterator[str]:
        return (field.name for field in fields(self) if field.name != "unit")

    def _numbers(self) -> Iterator[object]:
        return (getattr(self, name) for name in self._number_fields())

    def _check_number(self, number: object, where: str) -> None:
        if not (self.optional and number is None):
            check_number(number, where, minimum=self.minimum)

    def uses_limit(self) -> bool:
        """Return whether the due numbers depend on the limit of the run."""
        return any(map(is_share, self._numbers()))

    def check_limit(self, view: CounterView) -> None:
        if self.unit is not None and not view.counts(self.unit):
            raise ConfigError(
                [
                    f"when={self!r}: the run does not count the unit {self.unit!r}. Pass `batch_tokens`, a function of "
                    "the batch or the name of one of its keys."
                ]
            )
        self._get_limit(view)

    def _get_limit(self, view: CounterView) -> int | None:
        """Return the limit of the run if this schedule depends on it.

        Raises:
            ConfigError: If the limit is unknown.
        """
        if not self.uses_limit():
            return None
        limit = view.limit(self.unit)
        if limit is None:
            raise ConfigError([_no_limit_message(self, view)])
        return limit

    def _resolve(self, config: FieldConfig | None, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(self._resolve(config, number) for number in value)
        if not isinstance(value, str):
            return value
        if config is None:
            raise ConfigError([f"{self!r}: no config contains the field {value!r}. Use a number, or a hookbus.Hook."])
        known = type(config).model_fields
        if value not in known:
            suggestion = suggest_names(value, known)
            raise ConfigError([f"{self!r}: {type(config).__name__} has no field {value!r}.{suggestion}"])
        number = getattr(config, value)
        if isinstance(number, str):  # not the name of a further field
            raise ConfigError([f"{self!r}: invalid field {value!r}, expected a number, got {number!r}."])
        self._check_number(number, f"{self!r}, {value}={number!r}")
        return number

    def _unit_text(self) -> str:
        return f", unit={self.unit!r}" if self.unit else ""


@dataclass(frozen=True, repr=False)
class Every(Counted):
    interval: Number | str | None
    start: Number | str | None
    optional = True

    def due(self, view: CounterView) -> bool:
        first, final = view.range(self.unit)
        # An event may cover a range of numbers, such as the samples of a batch.
        return first <= final and self.next_due(first - 1, self._get_limit(view)) <= final

    def next_due(self, number: int, limit: int | None) -> int:
        if self.interval is None:
            return NEVER
        if limit is None and self.uses_limit():
            return number + 1
        interval = to_position(self.interval, limit)
        start = interval if self.start is None else to_position(self.start, limit)
        if number < start:
            return ceil(start)
        return ceil(start + ((number - start) // interval + 1) * interval)

    def __repr__(self) -> str:
        start = "" if self.start is None else f", start={self.start!r}"
        return f"every({self.interval!r}{start}{self._unit_text()})"


@dataclass(frozen=True, repr=False)
class Between(Counted):
    first: Number | str
    final: Number | str
    minimum = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        first, final = self.first, self.final
        # A number and a share are compared in the run only.
        if not isinstance(first, str) and not isinstance(final, str) and type(first) is type(final) and first > final:
            raise ConfigError([f"{self!r}: never due, because the first number is greater than the last. Swap them."])

    def due(self, view: CounterView) -> bool:
        limit = self._get_limit(view)
        first, final = (ceil(to_position(number, limit)) for number in (self.first, self.final))
        return max(first, 1) <= view.current(self.unit) <= final

    def next_due(self, number: int, limit: int | None) -> int:
        if limit is None and self.uses_limit():
            return number + 1
        first, final = (ceil(to_position(bound, limit)) for bound in (self.first, self.final))
        if number < first:
            return first
        return number + 1 if number < final else NEVER

    def __repr__(self) -> str:
        return f"between({self.first!r}, {self.final!r}{self._unit_text()})"


@dataclass(frozen=True, repr=False)
class Once(Counted):
    numbers: tuple[Number | str, ...]

    def _numbers(self) -> Iterator[object]:
        return iter(self.numbers)

    def due(self, view: CounterView) -> bool:
        first, final = view.range(self.unit)
        limit = self._get_limit(view)
        return any(first <= ceil(to_position(number, limit)) <= final for number in self.numbers)

    def next_due(self, number: int, limit: int | None) -> int:
        if limit is None and self.uses_limit():
            return number + 1
        positions = (ceil(to_position(n, limit)) for n in self.numbers)
        return min((position for position in positions if position > number), default=NEVER)

    def __repr__(self) -> str:
        return f"once({', '.join(map(repr, self.numbers))}{self._unit_text()})"


@dataclass(frozen=True, repr=False)
class Last(Counted):
    def uses_limit(self) -> bool:
        return True

    def due(self, view: CounterView) -> bool:
        first, final = view.range(self.unit)
        limit = self._get_limit(view)
        return limit is not None and first <= limit <= final

    def next_due(self, number: int, limit: int | None) -> int:
        if limit is None:
            return number + 1
        return limit if number < limit else NEVER

    def __call__(self, *, unit: Unit | None = None) -> Schedule:
        """Return the schedule for another unit than that of the point: `last(unit="epoch")`."""
        return Last(unit=parse_unit(unit))

    def __repr__(self) -> str:
        return f"last(unit={self.unit!r})" if self.unit else "last"


@dataclass(frozen=True, repr=False)
class Combined(Schedule):
    """Combination of two schedules."""

    left: Schedule
    right: Schedule

    def units(self) -> set[Unit | None]:
        return self.left.units() | self.right.units()

    def check_limit(self, view: CounterView) -> None:
        self.left.check_limit(view)
        self.right.check_limit(view)

    def check_point(self, point: Point) -> None:
        self.left.check_point(point)
        self.right.check_point(point)

    def reads_run(self) -> bool:
        return self.left.reads_run() or self.right.reads_run()

    def resolve(self, config: FieldConfig | None) -> Schedule:
        return replace(self, left=self.left.resolve(config), right=self.right.resolve(config))


@dataclass(frozen=True, repr=False)
class And(Combined):
    def due(self, view: CounterView) -> bool:
        return self.left.due(view) and self.right.due(view)

    def next_due(self, number: int, limit: int | None) -> int:
        return max(self.left.next_due(number, limit), self.right.next_due(number, limit))

    def is_out_of_reach(self, last_number: Callable[[Unit | None], int | None]) -> bool:
        parts = self.left.is_out_of_reach(last_number) or self.right.is_out_of_reach(last_number)
        return parts or super().is_out_of_reach(last_number)

    def __repr__(self) -> str:
        return f"({self.left!r} & {self.right!r})"


@dataclass(frozen=True, repr=False)
class Or(Combined):
    def due(self, view: CounterView) -> bool:
        return self.left.due(view) or self.right.due(view)

    def next_due(self, number: int, limit: int | None) -> int:
        return min(self.left.next_due(number, limit), self.right.next_due(number, limit))

    def is_out_of_reach(self, last_number: Callable[[Unit | None], int | None]) -> bool:
        return self.left.is_out_of_reach(last_number) and self.right.is_out_of_reach(last_number)

    def __repr__(self) -> str:
        return f"({self.left!r} | {self.right!r})"


@dataclass(frozen=True, repr=False)
class Not(Schedule):
    inner: Schedule

    def due(self, view: CounterView) -> bool:
        # The complement is taken within the counted events: a truncated epoch is due neither for a schedule nor for its
        # negation.
        return all(map(view.is_counted, self.units())) and not self.inner.due(view)

    def units(self) -> set[Unit | None]:
        return self.inner.units()

    def check_limit(self, view: CounterView) -> None:
        self.inner.check_limit(view)

    def check_point(self, point: Point) -> None:
        self.inner.check_point(point)

    def reads_run(self) -> bool:
        return self.inner.reads_run()

    def resolve(self, config: FieldConfig | None) -> Schedule:
        return Not(self.inner.resolve(config))

    def __repr__(self) -> str:
        return f"~{self.inner!r}"


def every(interval: Number | str | None, *, start: Number | str | None = None, unit: Unit | None = None) -> Schedule:
    """Return a schedule that is due at `interval`, 2 * `interval`, ...; with `start`, at start, start + interval, ...

    A float from 0 to 1 is a share of the run. In a run of n units, the k-th multiple of the share s is complete at unit
    `ceil(k * s * n)`: `every(0.1)` is due ten times, the last time in the last unit.

    Args:
        interval: A positive integer, a share, the name of a config field of the hook, or None for never.
        start: First number or share that is due. Default: `interval`.
        unit: Unit to count in: `"iter"`, `"batch"`, `"step"`, `"epoch"`, `"sample"`, `"token"` or `"seconds"`. Default:
            the unit of the point.

    Raises:
        ConfigError: If `interval` or `start` is an integer less than 1, or a share that is 0 or greater than 1. Before
            a run starts: if one of them is a share and the length of the run in this unit is unknown.
    """
    return Every(parse_unit(unit), interval, start)


def between(first: Number | str, final: Number | str, *, unit: Unit | None = None) -> Schedule:
    """Return a schedule that is due from `first` to `final`, both inclusive.

    Args:
        first: First number that is due, a share of the run as in `every`, or the name of a config field of the hook.
        final: Last number that is due, a share of the run, or the name of a config field of the hook.
        unit: Unit to count in. Default: the unit of the point.

    Raises:
        ConfigError: If a number is less than 0, a share is greater than 1, or `first` is greater than `final`.
    """
    return Between(parse_unit(unit), first, final)


def once(*numbers: Number | str, unit: Unit | None = None) -> Schedule:
    """Return a schedule that is due at each of the numbers; `once()` is due at number 1, `once(0.5)` halfway.

    Args:
        numbers: Numbers, shares of the run as in `every`, or names of config fields of the hook. Default: 1.
        unit: Unit to count in. Default: the unit of the point.

    Raises:
        ConfigError: If a number is less than 1, or a share is 0 or greater than 1.
    """
    return Once(parse_unit(unit), numbers or (1,))


last = Last(unit=None)
"""Schedule that is due at the last number of the run, which must have a limit. `last(unit="epoch")` sets the unit."""


def _no_limit_message(schedule: Counted, view: CounterView) -> str:
    """Return the error message of a schedule that depends on the limit, for a run without a limit in its unit."""
    ends: dict[Unit, str] = {"iter": "iterations", "epoch": "epochs", "token": "tokens"}
    known = [unit for unit in ends if view.limit(unit) is not None]
    if known:
        names = " and ".join(ends[unit] for unit in known)
        instead = " or ".join(repr(replace(schedule, unit=unit)) for unit in known)
        return f"when={schedule!r}: the run has no known limit in this unit, only in {names}. Use {instead}."
    return (
        f"when={schedule!r}: the run has no known limit. Set `epochs` and pass a training loader with a length, or set "
        "`iterations`, and count in epochs or iterations (the last step, sample or second is not known in advance)."
    )
