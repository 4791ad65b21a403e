"""Points: named moments of a run at which listeners are called.

A point is declared by a method of a spec class such as `hookbus.Lifecycle`, or by `bus.declare`. The empty base methods
of points, which the methods of a subclass may call by `super()`, are no listeners: registration ignores them, so that a
point without other methods has no overhead.
"""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar, get_args

from hookbus._utils.deprecations import SPEC_ATTRIBUTE, Deprecation, read_deprecations
from hookbus.errors import ConfigError, PointError, suggest_names

Unit = Literal["iter", "batch", "step", "epoch", "sample", "token", "seconds"]
HookUnit = Literal["iter", "step", "epoch"]
"""Unit in which the setting `frequency` of a hook counts."""
F = TypeVar("F", bound=Callable[..., Any])

POINT_ALIASES: Mapping[str, str] = {
    "before_training": "before_train",
    "after_training": "after_train",
    "before_step": "before_train_iter",
    "after_step": "after_train_iter",
}
"""Aliases of points, resolved at registration."""

ARGUMENT_ALIASES: Mapping[str, str] = {"runner": "run", "data_batch": "batch", "trainer": "run", "trainner": "run"}
"""Aliases of arguments: a listener may take `runner` instead of `run`."""


@dataclass(frozen=True, slots=True)
class Point:
    """A named moment of a run.

    Attributes:
        name: Name of the method of the spec class.
        args: Arguments that listeners may take in addition to `run`, in order.
        unit: Default unit of `when=` at this point, None if schedules require a `unit` of their own.
        doc: Description as Markdown.
        types: Annotation of each argument, as written in the source.
        deprecations: Deprecations of the point and of its arguments.
    """

    name: str
    args: tuple[str, ...]
    unit: Unit | None
    doc: str
    types: tuple[str, ...]
    deprecations: tuple[Deprecation, ...] = ()

    @property
    def reverse(self) -> bool:
        """Whether the nested order runs by descending priority at this point."""
        return self.name.startswith("after_") or self.name == "cleanup"

    @property
    def description(self) -> str:
        """Description as Markdown, including what is deprecated."""
        notes = [deprecation.describe(self.name) for deprecation in self.deprecations]
        return " ".join([self.doc, *(f"Note: {note}" for note in notes)]).strip()

    @property
    def signature(self) -> str:
        """Signature of a listener that takes all arguments: `after_train_iter(run, step, ...)`."""
        return f"{self.name}({', '.join(('run', *self.args))})"


class Counters(Protocol):
    """Counters of a run, with one attribute per counted number."""

    @property
    def is_at_limit(self) -> bool:
        """Whether the run has reached its limit."""

    def current(self, unit: Unit) -> int:
        """Return the current or last number of a unit, from 1."""

    def count_seconds(self) -> None:
        """Count the training time in seconds from now on."""


class CounterView(Protocol):
    """View of the counters of a run from one point. A `unit` of None is the unit of the point.

    Attributes:
        unit: Unit of the point.
        run: The run, which conditions read.
    """

    unit: Unit
    run: Any

    @property
    def clock(self) -> Counters:
        """Counters of the run."""

    @property
    def loader_name(self) -> str | None:
        """Name of the validation or test loader that is being read, None if it has none."""

    @property
    def loader_names(self) -> Collection[str] | None:
        """Names of the loaders of the point, None if they are unknown."""

    def get_counter(self, unit: Unit) -> tuple[str, int, int] | None:
        """Return how to compute the numbers of a unit from an attribute of the counters.

        Args:
            unit: Unit to count in.

        Returns:
            Name of the attribute, and the offsets that yield the smallest and the largest number of an event. None if
            no attribute determines the numbers, so that each event must be evaluated.
        """

    def is_counted(self, unit: Unit | None) -> bool:
        """Return whether the unit is counted at this event; False for the epoch if it was truncated.

        Args:
            unit: Unit, None for that of the point.
        """

    def current(self, unit: Unit | None) -> int:
        """Return the current number, from 1; 0 if there is none.

        Args:
            unit: Unit, None for that of the point.
        """

    def range(self, unit: Unit | None) -> tuple[int, int]:
        """Return the first and last number that this event starts or completes; first > last if there is none.

        Args:
            unit: Unit, None for that of the point.
        """

    def counts(self, unit: Unit) -> bool:
        """Return whether the run counts a unit.

        Args:
            unit: Unit, such as "token", which a run counts if it knows how.
        """

    def limit(self, unit: Unit | None) -> int | None:
        """Return the last number of the run, None if it is unknown.

        Args:
            unit: Unit, None for that of the point.
        """

    def next_limit_change(self, unit: Unit, number: int) -> int | None:
        """Return the first number after `number` at which the limit may change, None if it is fixed.

        Args:
            unit: Unit to count in.
            number: Current number in the unit.
        """


def counted(unit: Unit) -> Callable[[F], F]:
    """Mark a point as counted in a unit, so that it supports schedules such as `when=every(n)`."""

    def mark(method: F) -> F:
        method.unit = unit  # type: ignore[attr-defined]
        return method

    return mark


def is_action_spec(method: object) -> bool:
    """Return whether a method of a spec class is marked as an action, see `hookbus.actionspec`."""
    return getattr(method, "action", False) is True


def parse_points(spec: type) -> dict[str, Point]:
    """Return the points that a spec class declares: its public methods except actions, in order of definition.

    Raises:
        PointError: If a method takes `*args` or `**kwargs`.
    """
    functions = {name: method for name, method in vars(spec).items() if inspect.isfunction(method)}
    methods = {name: method for name, method in functions.items() if not is_action_spec(method)}
    return {name: parse_point(method) for name, method in methods.items() if not name.startswith("_")}


def parse_point(method: Callable[..., object], *, skip: int = 1) -> Point:
    """Return the point that a method of a spec class declares.

    Args:
        method: The method.
        skip: Number of parameters before those of the point: 1 (default) for `self`, 0 for a function of a module.

    Raises:
        PointError: If the method takes `*args` or `**kwargs`, or is marked with an option of pluggy that points do not
            support: `historic` or `firstresult`.
    """
    name = method.__name__
    options = getattr(method, SPEC_ATTRIBUTE, None) or {}
    if unsupported := [option for option in ("historic", "firstresult") if options.get(option)]:
        raise PointError(
            f"{name}: {', '.join(unsupported)} of pluggy is not supported by points, whose listeners return nothing "
            "and are called by the events after their registration. Remove the option."
        )
    parameters = list(inspect.signature(method).parameters.values())[skip:]
    if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters):
        raise PointError(
            f"{name}{inspect.signature(method)}: invalid *args or **kwargs. Name every argument of the point {name}."
        )
    # `run` and the argument aliases exist at every point; a spec class may list them so that it reads like a listener.
    arguments = [p for p in parameters if p.name not in ("run", *ARGUMENT_ALIASES)]
    return Point(
        name=name,
        args=tuple(p.name for p in arguments),
        unit=getattr(method, "unit", None),
        doc=inspect.cleandoc(method.__doc__ or ""),
        types=tuple(_format_type(p) for p in arguments),
        deprecations=read_deprecations(method),
    )


def check_name(name: object) -> None:
    """Raise if an object is not a valid name of a point, an action or an argument.

    Raises:
        PointError: If it is not.
    """
    # The names become source code of generated functions, whose own variables start with an underscore.
    if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
        raise PointError(
            f"invalid name of a point or argument, got {name!r}. Use an identifier without a leading underscore."
        )


def check_point(point: Point, taken: Collection[str]) -> None:
    """Raise if a custom point cannot be declared.

    Raises:
        PointError: If a name is reserved or not an identifier, an argument is duplicated, or the unit or a deprecated
            argument is unknown.
    """
    for name in (point.name, *point.args):
        check_name(name)
    if point.name in taken:
        raise PointError(
            f"{point.name!r} is reserved for an alias, an action, or an attribute of the bus or of hooks. Choose "
            "another name."
        )
    reserved = sorted({"run", "self", *ARGUMENT_ALIASES} & set(point.args))
    if reserved:
        raise PointError(f"{point.name}: reserved argument {', '.join(reserved)}. Remove it from the declaration.")
    if len(set(point.args)) < len(point.args):
        raise PointError(f"{point.signature}: duplicate argument. Name each argument once.")
    for argument in (deprecation.argument for deprecation in point.deprecations):
        if argument is not None and argument not in point.args:
            raise PointError(
                f"{point.signature}: unknown deprecated argument, got {argument!r}."
                f"{suggest_names(argument, point.args)}"
            )
    if point.unit is not None and point.unit not in get_args(Unit):
        raise PointError(f"{point.name}: unknown unit {point.unit!r}.{suggest_names(point.unit, get_args(Unit))}")


def parse_unit(unit: Unit | None) -> Unit | None:
    """Return a unit; None is the unit of the point.

    Raises:
        ConfigError: If the unit is unknown.
    """
    if unit is not None and unit not in get_args(Unit):
        raise ConfigError([f"unknown unit {unit!r}.{suggest_names(str(unit), get_args(Unit))}"])
    return unit


def _format_type(parameter: inspect.Parameter) -> str:
    if parameter.annotation is inspect.Parameter.empty:
        return "Any"
    annotation = parameter.annotation
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return text.removesuffix(" | None")  # every argument of a point is optional; the generated types add None again


_EMPTY_ATTRIBUTE = "hookbus_empty"


def empty_method(name: str) -> Callable[..., Any]:
    """Return the empty base method of a point.

    A call by `super()` continues with the next class that defines the method, as if the base method did not exist: the
    order of the base classes does not matter.
    """

    def call_next(self: object, *args: Any, **kwargs: Any) -> Any:
        following = getattr(super(_find_owner(type(self), name), self), name, None)
        return None if following is None else following(*args, **kwargs)

    call_next.__name__, call_next.__qualname__, call_next.__doc__ = (
        name,
        f"BaseListeners.{name}",
        f"Do nothing at {name}.",
    )
    setattr(call_next, _EMPTY_ATTRIBUTE, True)
    return call_next


def is_empty_method(value: object) -> bool:
    """Return whether a function is the empty base method of a point."""
    return getattr(value, _EMPTY_ATTRIBUTE, False) is True


def get_static_method(plugin: object, name: str) -> Any:
    """Return an attribute without evaluating properties; None if there is only an empty base method."""
    value = inspect.getattr_static(plugin, name, None)
    if not is_empty_method(value):
        return value
    mro = (plugin if isinstance(plugin, type) else type(plugin)).__mro__
    following = (vars(cls)[name] for cls in mro if name in vars(cls) and not is_empty_method(vars(cls)[name]))
    return next(following, None)


def bind_method(plugin: object, name: str) -> Any:
    """Return a method of a plugin, bound to it; an empty base method is skipped."""
    method = getattr(plugin, name)
    return getattr(super(_find_owner(type(plugin), name), plugin), name) if is_empty_method(method) else method


def _find_owner(cls: type, name: str) -> type:
    """Return the base class that defines the empty method of a point."""
    return next(base for base in cls.__mro__ if is_empty_method(vars(base).get(name)))
