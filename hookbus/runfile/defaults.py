"""Merging of user hooks with the default hooks."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["merge_defaults"]


def merge_defaults(hooks: Iterable[object], defaults: Iterable[object]) -> list[object]:
    """Return the default hooks that no user hook replaces, then the user hooks.

    Args:
        hooks: User hooks. A hook that is an instance of the type of a default hook replaces it, even if disabled.
        defaults: Hooks of `get_default_hooks()`.

    Returns:
        The merged list. The default hooks come first.
    """
    own_hooks = list(hooks)
    kept = [hook for hook in defaults if not any(isinstance(own_hook, type(hook)) for own_hook in own_hooks)]
    # Hooks of equal priority run in the order of registration, so the default hooks precede the user hooks.
    return [*kept, *own_hooks]
