"""How given hooks and default hooks go together."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["with_defaults"]


def with_defaults(given: Iterable[object], defaults: Iterable[object]) -> list[object]:
    """The default hooks that none of the given ones replaces, then the given ones.

    Args:
        given: hooks; one of the same type as a default, even a disabled one, replaces it.
        defaults: of `get_default_hooks()`.
    """
    own = list(given)
    types = {type(hook) for hook in own}
    return [*(hook for hook in defaults if type(hook) not in types), *own]
