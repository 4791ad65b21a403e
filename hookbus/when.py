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

import ast
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, get_args

from hookbus.errors import ConfigError, did_you_mean
from hookbus.lifecycle import Unit

if TYPE_CHECKING:
    from hookbus.hook import HookConfig

__all__ = ["NEVER", "Schedule", "between", "every", "last", "once", "parse"]

NEVER = sys.maxsize
"""The number that is never reached."""


class Moment(Protocol):
    """What a schedule may ask of the clock; `unit` None is the point's own."""

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

    def resolve(self, config: HookConfig) -> Schedule:
        """Replace names of config fields, as in `every("interval")`, by their values."""
        return self

    def __and__(self, other: Schedule) -> Schedule:
        return Both(self, other)

    def __or__(self, other: Schedule) -> Schedule:
        return Either(self, other)

    def __invert__(self) -> Schedule:
        return Not(self)


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

    def resolve(self, config: HookConfig) -> Schedule:
        interval, start = _field(config, self.interval), _field(config, self.start)
        return replace(self, interval=_positive(interval, "every", self.interval), start=start)

    def __repr__(self) -> str:
        start = "" if self.start is None else f", start={self.start!r}"
        return f"every({self.interval!r}{start}{self._unit_text()})"


@dataclass(frozen=True, repr=False)
class Between(Counted):
    first: int | str
    final: int | str

    def due(self, moment: Moment) -> bool:
        return int(self.first) <= moment.number(self.unit) <= int(self.final)

    def following(self, number: int, limit: int | None) -> int:
        if number < int(self.first):
            return int(self.first)
        return number + 1 if number < int(self.final) else NEVER

    def resolve(self, config: HookConfig) -> Schedule:
        return replace(self, first=_field(config, self.first), final=_field(config, self.final))

    def __repr__(self) -> str:
        return f"between({self.first!r}, {self.final!r}{self._unit_text()})"


@dataclass(frozen=True, repr=False)
class Once(Counted):
    numbers: tuple[int | str, ...]

    def due(self, moment: Moment) -> bool:
        first, last = moment.span(self.unit)
        return any(first <= int(n) <= last for n in self.numbers)

    def following(self, number: int, limit: int | None) -> int:
        return min((int(n) for n in self.numbers if int(n) > number), default=NEVER)

    def resolve(self, config: HookConfig) -> Schedule:
        return replace(self, numbers=tuple(_field(config, n) for n in self.numbers))

    def __repr__(self) -> str:
        return f"once({', '.join(map(repr, self.numbers))}{self._unit_text()})"


@dataclass(frozen=True, repr=False)
class Last(Counted):
    def due(self, moment: Moment) -> bool:
        limit = moment.limit(self.unit)
        if limit is None:
            raise ConfigError([_NO_LIMIT])
        first, final = moment.span(self.unit)
        return first <= limit <= final

    def following(self, number: int, limit: int | None) -> int:
        if limit is None:
            return number + 1
        return limit if number < limit else NEVER

    def __call__(self, *, unit: Unit | None = None) -> Schedule:
        """`last(unit="epoch")`: the last one in another unit than the point's."""
        return Last(unit=_checked_unit(unit))

    def __repr__(self) -> str:
        return f"last(unit={self.unit!r})" if self.unit else "last"


@dataclass(frozen=True, repr=False)
class Pair(Schedule):
    """Two schedules, combined."""

    left: Schedule
    right: Schedule

    def units(self) -> set[Unit | None]:
        return self.left.units() | self.right.units()

    def resolve(self, config: HookConfig) -> Schedule:
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
        return not self.inner.due(moment)

    def units(self) -> set[Unit | None]:
        return self.inner.units()

    def resolve(self, config: HookConfig) -> Schedule:
        return Not(self.inner.resolve(config))

    def __repr__(self) -> str:
        return f"~{self.inner!r}"


@dataclass(frozen=True, repr=False)
class Asked(Schedule):
    """A hook's own `should_trigger(step)`, which gets the index from 0."""

    answer: Callable[[int], object]

    def due(self, moment: Moment) -> bool:
        return bool(self.answer(moment.number(None) - 1))

    def __repr__(self) -> str:
        return "should_trigger"


def every(interval: int | str | None, *, start: int | str | None = None, unit: Unit | None = None) -> Schedule:
    """Due at `interval`, 2 * `interval`, ...; with `start` at start, start + interval, ...

    Args:
        interval: a positive count, the name of a field of the hook's config, or None for never.
        start: the first number that is due; default `interval`.
        unit: what is counted: "iter", "batch", "step", "epoch", "sample" or "seconds"; default the point's.

    Raises:
        ConfigError: `interval` is less than 1.
    """
    return Every(_checked_unit(unit), _positive(interval, "every", interval), start)


def between(first: int | str, final: int | str, *, unit: Unit | None = None) -> Schedule:
    """Due from `first` to `final`, both included."""
    return Between(_checked_unit(unit), first, final)


def once(*numbers: int | str, unit: Unit | None = None) -> Schedule:
    """Due at each of these numbers, and `once()` at number 1."""
    return Once(_checked_unit(unit), numbers or (1,))


last = Last(unit=None)
"""Due at the last number of the run; an error where the run has no known end. `last(unit="epoch")` works."""


_NO_LIMIT = (
    "when=last needs a run whose end is known: give epochs= and a training loader with a length, or iterations=."
)


def parse(text: str) -> Schedule:
    """Read a schedule from a run file: `every(100) & between(1, 1000)`.

    Raises:
        ConfigError: the text is not a schedule.
    """
    try:
        return _from_node(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, TypeError, RecursionError, MemoryError) as error:
        raise ConfigError([f"{text!r} is not a schedule: {_reason(error)}. {_HOW}"]) from None


_HOW = "Write every(50), between(1, 1000), once(12) or last, combined by &, | and ~."


def _reason(error: Exception) -> str:
    return error.msg if isinstance(error, SyntaxError) else str(error)


def _from_node(node: ast.expr) -> Schedule:
    match node:
        case ast.BinOp(left, ast.BitAnd(), right):
            return _from_node(left) & _from_node(right)
        case ast.BinOp(left, ast.BitOr(), right):
            return _from_node(left) | _from_node(right)
        case ast.UnaryOp(ast.Invert(), operand):
            return ~_from_node(operand)
        case ast.Name("last"):
            return last
        case ast.Call(ast.Name(name), args, keywords):
            return _called(name, [_literal(a) for a in args], {k.arg or "**": _literal(k.value) for k in keywords})
    raise TypeError(f"{ast.unparse(node)} is not part of a schedule")


def _called(name: str, args: list[Any], keywords: dict[str, Any]) -> Schedule:
    makers: dict[str, Callable[..., Schedule]] = {"every": every, "between": between, "once": once, "last": last}
    if name not in makers:
        raise TypeError(f"there is no {name}(...).{did_you_mean(name, makers)}")
    return makers[name](*args, **keywords)


def _literal(node: ast.expr) -> int | str:
    if isinstance(node, ast.Constant) and type(node.value) in (int, str):
        return node.value  # type: ignore[return-value]
    raise TypeError(f"{ast.unparse(node)} is neither a whole number nor a unit")


def _field(config: HookConfig, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    fields = type(config).model_fields
    if value not in fields:
        near = did_you_mean(value, fields)
        raise ConfigError(
            [f"when= names the field {value!r}, which {type(config).__name__} does not have.{near}"]
        ) from None
    return getattr(config, value)


def _positive(value: int | str | None, maker: str, field: object) -> int | str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        name = f" (the field {field!r})" if isinstance(field, str) else ""
        raise ConfigError([f"{maker}({value!r}){name}: an interval is a whole number of at least 1."])
    return value


def _checked_unit(unit: Unit | None) -> Unit | None:
    if unit is not None and unit not in get_args(Unit):
        raise ConfigError([f"{unit!r} is not a unit.{did_you_mean(str(unit), get_args(Unit))}"])
    return unit
