"""How given hooks and default hooks go together."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["with_defaults"]


def with_defaults(given: Iterable[object], defaults: Iterable[object]) -> list[object]:
    """The default hooks that none of the given ones replaces, then the given ones.

    Args:
        given: hooks; one of the type of a default (or of a subclass of it), even a disabled one, replaces it.
        defaults: of `get_default_hooks()`.
    """
    own = list(given)
    kept = [hook for hook in defaults if not any(isinstance(each, type(hook)) for each in own)]
    return [*kept, *own]
