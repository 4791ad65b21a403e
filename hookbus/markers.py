"""The two markers: `hookimpl` gives a listener its options, `hookspec` declares points of one's own.

They write the attribute that pluggy's own markers for the project "hookbus" write, so that plugins made
with `pluggy.HookimplMarker("hookbus")` register as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar, overload

import pluggy

from hookbus.errors import RegistrationError
from hookbus.lifecycle import Unit
from hookbus.when import Schedule

__all__ = ["IMPL_ATTRIBUTE", "PROJECT", "SPEC_ATTRIBUTE", "Options", "hookimpl", "hookspec"]

PROJECT = "hookbus"
IMPL_ATTRIBUTE = f"{PROJECT}_impl"
SPEC_ATTRIBUTE = f"{PROJECT}_spec"

F = TypeVar("F", bound=Callable[..., Any])
Options = dict[str, Any]
"""What pluggy keeps of an implementation: its own options and ours (when, priority, before, after)."""

_pluggy_impl = pluggy.HookimplMarker(PROJECT)
_pluggy_spec = pluggy.HookspecMarker(PROJECT)


@overload
def hookimpl(function: F) -> F: ...
@overload
def hookimpl(
    function: None = None,
    *,
    when: Schedule | Callable[[Any], Schedule] | None = ...,
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
    when: Schedule | Callable[[Any], Schedule] | None = None,
    priority: int | None = None,
    before: str | Iterable[str] = (),
    after: str | Iterable[str] = (),
    specname: str | None = None,
    tryfirst: bool = False,
    trylast: bool = False,
    wrapper: bool = False,
) -> F | Callable[[F], F]:
    """Give a listener its options. Without options it is not needed in a `Hook`: the name is enough.

    Args:
        function: the listener, when the marker is used without parentheses.
        when: a schedule, or a function of the hook's config that returns one.
        priority: this listener's own number, instead of its hook's.
        before: names of hooks that must run later than this listener at this point.
        after: names of hooks that must run earlier.
        specname: the point or action it implements, where the method has another name.
        tryfirst: actions only: outside of every number.
        trylast: actions only: inside of every number.
        wrapper: actions only: a generator that yields once, around the rest.

    Raises:
        RegistrationError: `before` or `after` is not a name or a list of names, or `when` is not a schedule.
    """
    if not (when is None or isinstance(when, Schedule) or callable(when)):
        raise RegistrationError(
            f"when= takes a schedule such as every(50), or a function that returns one, not {when!r}."
        )

    def mark(listener: F) -> F:
        marked = _pluggy_impl(specname=specname, tryfirst=tryfirst, trylast=trylast, wrapper=wrapper)(listener)
        options = getattr(marked, IMPL_ATTRIBUTE)
        options.update(when=when, priority=priority, before=_names(before), after=_names(after))
        return marked

    return mark if function is None else mark(function)


@overload
def hookspec(function: F) -> F: ...
@overload
def hookspec(function: None = None, *, unit: Unit | None = ...) -> Callable[[F], F]: ...
def hookspec(function: F | None = None, *, unit: Unit | None = None) -> F | Callable[[F], F]:
    """Mark a method of a spec class as a point of one's own.

    Args:
        function: the method, when the marker is used without parentheses.
        unit: what `when=` counts at this point; None where nothing is counted.
    """

    def mark(method: F) -> F:
        method.unit = unit  # type: ignore[attr-defined]
        return _pluggy_spec(method)

    return mark if function is None else mark(function)


def _names(names: str | Iterable[str]) -> tuple[str, ...]:
    listed = tuple(names) if isinstance(names, Iterable) and not isinstance(names, str) else (names,)
    if not all(isinstance(name, str) for name in listed):
        raise RegistrationError(f"before= and after= take names of hooks, not {listed!r}.")
    return listed
