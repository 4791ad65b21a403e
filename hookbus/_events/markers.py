"""Markers: `hookimpl` sets the options of a listener, `hookspec` declares custom points.

The markers set the same attributes as pluggy's markers for the project "hookbus". Plugins that use
`pluggy.HookimplMarker("hookbus")` can therefore be registered as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar, overload

import pluggy

from hookbus._events.points import Unit
from hookbus._events.schedules import Schedule
from hookbus.errors import RegistrationError

PROJECT = "hookbus"
IMPL_ATTRIBUTE = f"{PROJECT}_impl"

F = TypeVar("F", bound=Callable[..., Any])
Options = dict[str, Any]
"""Options of an implementation: those of pluggy, and `when`, `frequency`, `priority`, `before` and `after`."""

_pluggy_impl = pluggy.HookimplMarker(PROJECT)
mark_spec = pluggy.HookspecMarker(PROJECT)


@overload
def hookimpl(function: F) -> F: ...
@overload
def hookimpl(
    function: None = None,
    *,
    when: Schedule | Callable[[Any], object] | None = ...,
    frequency: bool = ...,
    priority: int | None = ...,
    before: str | Iterable[str] = ...,
    after: str | Iterable[str] = ...,
    specname: str | None = ...,
    tryfirst: bool = ...,
    trylast: bool = ...,
    wrapper: bool = ...,
) -> Callable[[F], F]: ...
def hookimpl(
    function: F | None = None,
    *,
    when: Schedule | Callable[[Any], object] | None = None,
    frequency: bool = True,
    priority: int | None = None,
    before: str | Iterable[str] = (),
    after: str | Iterable[str] = (),
    specname: str | None = None,
    tryfirst: bool = False,
    trylast: bool = False,
    wrapper: bool = False,
) -> F | Callable[[F], F]:
    """Set the options of a listener. A `Hook` without options does not need the marker.

    Args:
        function: The listener, if the marker is used without parentheses.
        when: Schedule; or a function of the run, whose first parameter is named `run`, that returns whether the
            listener is due; or a function of the config of the hook that returns a schedule.
        frequency: Whether the setting `frequency` and `should_trigger` may exclude events of this listener. Set False
            if it has to receive every event.
        priority: Priority of this listener, which overrides the priority of its hook.
        before: Names of hooks that must run later than this listener at this point.
        after: Names of hooks that must run earlier than this listener at this point.
        specname: Name of the point or action, if it differs from the name of the method.
        tryfirst: Actions only: run outside of all priorities.
        trylast: Actions only: run inside of all priorities.
        wrapper: Actions only: the function is a generator that yields once and wraps the other implementations.

    Raises:
        RegistrationError: If `before` or `after` is not a name or a list of names, `when` is not a schedule,
            `frequency` is not a boolean, or an option is passed without its name.
    """
    if function is not None and not callable(function):
        raise RegistrationError(
            f"hookimpl: expected a function, got {function!r}. Pass options by name, as in @hookimpl(when=every(50))."
        )
    if not isinstance(frequency, bool):
        raise RegistrationError(
            f"hookimpl: invalid `frequency`, got {frequency!r}. Pass False to receive every event, or when=every(...)."
        )
    if not (when is None or isinstance(when, Schedule) or callable(when)):
        raise RegistrationError(
            f"hookimpl: invalid `when`, got {when!r}. Pass a schedule such as every(50) or a function."
        )

    def mark(listener: F) -> F:
        marked = _pluggy_impl(specname=specname, tryfirst=tryfirst, trylast=trylast, wrapper=wrapper)(listener)
        options = getattr(marked, IMPL_ATTRIBUTE)
        # pluggy ignores unknown keys of its options dict, so that one attribute stores both.
        options.update(when=when, frequency=frequency, priority=priority)
        options.update(before=_to_names(before), after=_to_names(after))
        return marked

    return mark if function is None else mark(function)


@overload
def hookspec(function: F) -> F: ...
@overload
def hookspec(function: None = None, *, unit: Unit | None = ...) -> Callable[[F], F]: ...
def hookspec(function: F | None = None, *, unit: Unit | None = None) -> F | Callable[[F], F]:
    """Mark a method of a spec class as a custom point.

    Args:
        function: The method, if the marker is used without parentheses.
        unit: Default unit of `when=` at this point. None (default) requires schedules with a `unit` of their own.
    """

    def mark(method: F) -> F:
        method.unit = unit  # type: ignore[attr-defined]
        return mark_spec(method)

    return mark if function is None else mark(function)


def _to_names(names: str | Iterable[str]) -> tuple[str, ...]:
    result = tuple(names) if isinstance(names, Iterable) and not isinstance(names, str) else (names,)
    if not all(isinstance(name, str) for name in result):
        raise RegistrationError(f"hookimpl: invalid `before` or `after`, got {result!r}. Pass names of hooks.")
    return result
