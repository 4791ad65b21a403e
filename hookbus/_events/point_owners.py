"""Hooks that have declared points, which leave with their hooks."""

from __future__ import annotations

from collections.abc import Callable


class PointOwners:
    """Hooks that have declared points. Points that the loop or a package has declared have no entry."""

    def __init__(self) -> None:
        self._owners: dict[str, set[str]] = {}
        self._last: dict[str, str] = {}  # the hook that a point has left with

    def add(self, point: str, hook: str, *, is_new: bool) -> None:
        """Record that a hook declares a point; "" for the loop, which keeps the point from then on."""
        if not hook:
            self._owners.pop(point, None)
        elif is_new or point in self._owners:
            self._owners.setdefault(point, set()).add(hook)

    def allows(self, point: str, hook: str) -> bool:
        """Return whether a hook may declare an existing point again: its own, or that of a hook that has left."""
        owners = self._owners.get(point)
        return owners is not None and (not owners or hook in owners)

    def release(self, hook: str, is_used: Callable[[str], bool]) -> list[str]:
        """Remove a hook.

        Args:
            hook: Name of the hook.
            is_used: Function that returns whether a registered plugin listens at a point.

        Returns:
            Points that no hook has declared and at which no plugin listens any longer.
        """
        for point, owners in self._owners.items():
            if hook in owners:
                owners.remove(hook)
                self._last[point] = hook
        unused = [point for point, owners in self._owners.items() if not owners and not is_used(point)]
        for point in unused:
            del self._owners[point]
        return unused

    def describe(self, point: str) -> str:
        """Return a sentence about the hook that a point has left with, "" if it has not left."""
        return f" The hook {self._last[point]!r} that declared it has left." if point in self._last else ""
