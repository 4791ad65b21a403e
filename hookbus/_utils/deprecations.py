"""Deprecations: what will be removed, in which version, and what replaces it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import FunctionType
from typing import TypeVar

import typing_extensions

from hookbus.errors import HookDeprecationWarning, PointError

T = TypeVar("T")

SPEC_ATTRIBUTE = "hookbus_spec"
"""Attribute that pluggy's marker for the project "hookbus" sets on a method of a spec class."""
DEPRECATIONS_ATTRIBUTE = "hookbus_deprecations"
"""Attribute of a spec method that contains its deprecations."""


class deprecated(typing_extensions.deprecated):  # noqa: N801 # used as a decorator
    """Deprecation of a point or an action, of one of its arguments, or of a setting of a hook.

    Decorate the method or the function that declares the point or the action, pass it to `bus.declare`, or set it as
    `deprecated` of a pydantic field. A hook that uses what is deprecated causes one `HookDeprecationWarning` when it is
    registered or built.

    Args:
        removed_in: Package and version without it, such as "hookbus-render 2.0".
        replacement: What to use instead. None (default) if there is no replacement.
        argument: Argument that is deprecated. None (default) deprecates the point, action or setting itself.

    Raises:
        ValueError: If `removed_in` is not a text.

    Example:
        ```python
        from hookbus import HookConfig, deprecated
        from pydantic import Field


        class RenderPoints:
            @deprecated(removed_in="hookbus-render 2.0", replacement="image", argument="pixels")
            def after_render(self, image, pixels): ...


        class RenderConfig(HookConfig):
            zoom: float | None = Field(
                default=None, deprecated=deprecated(removed_in="hookbus-render 2.0", replacement="scale")
            )
        ```
    """

    def __init__(self, *, removed_in: str, replacement: str | None = None, argument: str | None = None) -> None:
        if not isinstance(removed_in, str) or not removed_in.strip():
            raise ValueError(
                f"deprecated: invalid `removed_in`, got {removed_in!r}. Pass a package and a version, such as "
                "'hookbus-render 2.0'."
            )
        self.removed_in, self.replacement, self.argument = removed_in, replacement, argument
        fix = "It has no replacement." if replacement is None else f"Use {replacement} instead."
        super().__init__(f"deprecated and will be removed in {removed_in}. {fix}", category=HookDeprecationWarning)

    def __call__(self, method: T, /) -> T:
        """Mark the method or the function that declares a point or an action."""
        if not isinstance(method, FunctionType):
            raise PointError(
                f"@deprecated: expected the method of a spec class, got {method!r}. Use typing_extensions.deprecated "
                "for classes."
            )
        setattr(method, DEPRECATIONS_ATTRIBUTE, (self, *getattr(method, DEPRECATIONS_ATTRIBUTE, ())))
        return method


@dataclass(frozen=True, slots=True)
class Deprecation:
    """Deprecation of a point or an action, or of one of its arguments.

    Attributes:
        text: What a message states about it: "deprecated and will be removed in hookbus-render 2.0. Use ... instead."
        argument: Name of the argument, None for the point or action itself.
        category: Category of the warning.
    """

    text: str
    argument: str | None = None
    category: type[Warning] = HookDeprecationWarning

    def describe(self, name: str) -> str:
        """Return the sentence about the deprecation of a point or an action with a name, for a message."""
        return f"{name if self.argument is None else f'argument {self.argument} of {name}'} is {self.text}"


def to_deprecations(notices: deprecated | Iterable[deprecated]) -> tuple[Deprecation, ...]:
    """Return the deprecations that one or several `deprecated` objects describe.

    Raises:
        PointError: If an object is of another type.
    """
    listed = (notices,) if isinstance(notices, str) or not isinstance(notices, Iterable) else tuple(notices)
    for notice in listed:
        if not isinstance(notice, deprecated):
            raise PointError(
                f"bus.declare: invalid `deprecated`, got {notice!r}. Pass hookbus.deprecated(removed_in=..., "
                "replacement=...)."
            )
    return tuple(Deprecation(notice.message, notice.argument) for notice in listed)


def read_deprecations(method: Callable[..., object]) -> tuple[Deprecation, ...]:
    """Return the deprecations of a declaration: those of `deprecated`, and the warnings of pluggy's `hookspec`.

    Raises:
        PointError: If `warn_on_impl` or `warn_on_impl_args` contains another object than a warning.
    """
    options = getattr(method, SPEC_ATTRIBUTE, None) or {}
    by_argument = {None: options.get("warn_on_impl"), **(options.get("warn_on_impl_args") or {})}
    of_pluggy = {argument: warning for argument, warning in by_argument.items() if warning is not None}
    for warning in of_pluggy.values():
        if not isinstance(warning, Warning):
            raise PointError(
                f"{method.__name__}: expected a warning in warn_on_impl or warn_on_impl_args, got {warning!r}. Pass "
                "an instance such as HookDeprecationWarning('...')."
            )
    return (
        *to_deprecations(getattr(method, DEPRECATIONS_ATTRIBUTE, ())),
        *(Deprecation(describe_notice(str(w)), argument, type(w)) for argument, w in of_pluggy.items()),
    )


def describe_notice(notice: object) -> str:
    """Return what a message states about a deprecated object.

    Args:
        notice: A `deprecated` object, a text, or True, as pydantic accepts for a field.
    """
    if isinstance(notice, deprecated):
        return notice.message
    text = str(getattr(notice, "message", "" if notice is True else notice)).strip()
    end = "" if text.endswith((".", "!")) else "."
    return f"deprecated: {text}{end}" if text else "deprecated."
