"""Conditions: schedules that depend on the run and not on its clock."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hookbus._events.points import ARGUMENT_ALIASES, CounterView, Point, Unit
from hookbus._events.schedules import Schedule
from hookbus.errors import ConfigError, suggest_names

LOADER_ARGUMENT = "dataloader_name"
"""Argument of the points that belong to one of several loaders."""


@dataclass(frozen=True, repr=False)
class Condition(Schedule):
    """Schedule without a unit, which is evaluated at every event."""

    def units(self) -> set[Unit | None]:
        return set()

    def reads_run(self) -> bool:
        return True


@dataclass(frozen=True, repr=False)
class Where(Condition):
    predicate: Callable[[Any], object]

    def due(self, view: CounterView) -> bool:
        return bool(self.predicate(view.run))

    def __repr__(self) -> str:
        return f"where({getattr(self.predicate, '__name__', type(self.predicate).__name__)})"


@dataclass(frozen=True, repr=False)
class ForLoader(Condition):
    names: tuple[str, ...]

    def due(self, view: CounterView) -> bool:
        return view.loader_name in self.names

    def check_point(self, point: Point) -> None:
        if LOADER_ARGUMENT not in point.args:
            raise ConfigError(
                [
                    f"when={self!r}: {point.name} belongs to no validation or test loader. Use it at points with the "
                    f"argument `{LOADER_ARGUMENT}`, such as after_val_epoch."
                ]
            )

    def check_limit(self, view: CounterView) -> None:
        known = view.loader_names
        if known is None:
            return
        for name in self.names:
            if name not in known:
                fix = suggest_names(name, known) if known else " Pass the loaders as a mapping of names to loaders."
                raise ConfigError([f"when={self!r}: the run has no loader {name!r}.{fix}"])

    def __repr__(self) -> str:
        return f"for_loader({', '.join(map(repr, self.names))})"


def where(predicate: Callable[[Any], object]) -> Schedule:
    """Return a schedule that is due if a function of the run returns a true value.

    The function is called at every event of the point, or if combined by `&`, when the other schedule may be due:
    `every(10) & where(lambda run: run.epoch > 3)`. Alone, it can be passed without `where`: `when=lambda run: ...`.

    Args:
        predicate: Function of the run. A resumed run repeats its results if they depend on the state of the run only.

    Raises:
        ConfigError: If `predicate` is not callable.
    """
    if not callable(predicate) or isinstance(predicate, Schedule):
        raise ConfigError([f"where: expected a function of the run, got {predicate!r}."])
    return Where(predicate)


def for_loader(*names: str) -> Schedule:
    """Return a schedule that is due at the events of named validation or test loaders.

    Args:
        names: Names of loaders, the keys of the mapping `val_loader` or `test_loader`.

    Raises:
        ConfigError: If there is no name, or one is not a string. Before a run starts: if it has no such loader.
    """
    if not names or not all(isinstance(name, str) for name in names):
        raise ConfigError([f"for_loader: expected names of loaders, got {names!r}."])
    return ForLoader(names)


def as_condition(when: object) -> Schedule | None:
    """Return the schedule of a function whose first parameter is the run, None for any other object."""
    if isinstance(when, Schedule) or not callable(when):
        return None
    try:
        parameters = inspect.signature(when).parameters
    except (TypeError, ValueError):  # a built-in function without a signature
        return None
    first = next(iter(parameters), "")
    return Where(when) if ARGUMENT_ALIASES.get(first, first) == "run" else None
