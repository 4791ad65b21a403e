"""Event handlers of a bridge, in a given order among those of the user."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ignite.engine import Engine


class Handlers:
    """Event handlers that a bridge has added to engines."""

    def __init__(self) -> None:
        self._handles: list[Any] = []

    def add(self, engine: Engine, event: Any, handler: Callable[[Engine], object], *, first: bool = False) -> Any:
        """Add a handler.

        Args:
            engine: Engine.
            event: Event.
            handler: Function of the engine.
            first: Whether to call it before the handlers that were added earlier, which may save a checkpoint.

        Returns:
            Handle with `remove()`.
        """
        handle = engine.add_event_handler(event, handler)
        if first:
            handlers = engine._event_handlers[event]
            handlers.insert(0, handlers.pop())
        self._handles.append(handle)
        return handle

    def remove(self) -> None:
        """Remove all handlers. Idempotent."""
        while self._handles:
            self._handles.pop().remove()
