"""Warnings about hooks that implement deprecated points or actions, or take deprecated arguments."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Sequence

from hookbus._events.checks import Implementation
from hookbus._utils.deprecations import Deprecation
from hookbus._utils.packages import package_label


def warn_of_deprecations(
    implementations: Iterable[Implementation], find: Callable[[str], Sequence[Deprecation]]
) -> None:
    """Issue a warning for each deprecated point, action or argument that implementations use.

    Args:
        implementations: Implementations of one plugin that is about to be registered.
        find: Function that returns the deprecations of a point or an action.
    """
    for item in implementations:
        for deprecation in find(item.target):
            if deprecation.argument in (None, *item.argument_names):
                _warn_at_listener(item, deprecation)


def _warn_at_listener(item: Implementation, deprecation: Deprecation) -> None:
    # At the definition of the listener, as in pluggy: the call that registers a hook may be anywhere.
    function = inspect.unwrap(getattr(item.call, "__func__", item.call))
    warnings.warn_explicit(
        f"hook {item.hook!r} ({package_label(item.plugin)}): {deprecation.describe(item.target)}",
        deprecation.category,
        filename=function.__code__.co_filename,
        lineno=function.__code__.co_firstlineno,
        module=function.__module__,
        registry=function.__globals__.setdefault("__warningregistry__", {}),
    )
