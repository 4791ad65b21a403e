"""Cache of lookups in the metadata of installed packages, which takes long to read and changes between run files."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_results: ContextVar[dict[Any, Any] | None] = ContextVar("_results", default=None)


@contextmanager
def cached_lookups() -> Iterator[None]:
    """Context manager in which decorated functions read the installed packages at most once."""
    token = _results.set({} if _results.get() is None else _results.get())
    try:
        yield
    finally:
        _results.reset(token)


def cache_within_lookups(function: Callable[P, T]) -> Callable[P, T]:
    """Cache the results of a function inside `cached_lookups`. Callers must not modify the results."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        results = _results.get()
        if results is None:
            return function(*args, **kwargs)
        key = (function, args, tuple(kwargs.items()))
        if key not in results:
            results[key] = function(*args, **kwargs)
        return results[key]  # type: ignore[no-any-return]

    return call
