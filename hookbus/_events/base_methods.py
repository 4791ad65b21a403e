"""Empty base methods of points, which the methods of a subclass may call by `super()`.

They are no listeners: registration ignores them, so that a point without other methods has no overhead.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

_EMPTY_ATTRIBUTE = "hookbus_empty"


def empty_method(name: str) -> Callable[..., Any]:
    """Return the empty base method of a point.

    A call by `super()` continues with the next class that defines the method, as if the base method did not exist: the
    order of the base classes does not matter.

    Args:
        name: Name of the point, or another spelling of it.
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
    """Return an attribute without evaluating properties; None if there is only an empty base method.

    Args:
        plugin: A plugin or a class.
        name: Name of the attribute.
    """
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
