"""Optimizers that step while a run is active, also if the run does not know them."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from hookbus.distributed.unwrap import unwrap_optimizer

_active: list[SteppedOptimizers] = []
"""Records of the active runs, in the order of their start."""

_handle: Any = None


class SteppedOptimizers:
    """Record the optimizers that step in this thread and that no active run knows.

    Args:
        known: Optimizers of the run, or wrappers of optimizers.
        is_paused: Function that returns whether steps are not recorded at the moment.
        on_new: Function that is called after an optimizer was recorded.
    """

    def __init__(self, known: Iterable[Any], is_paused: Callable[[], bool], on_new: Callable[[], object]) -> None:
        self.known = {id(unwrap_optimizer(optimizer)) for optimizer in known}
        self._is_paused, self._on_new = is_paused, on_new
        self._thread = threading.get_ident()
        # Weak references: an optimizer that the loop has discarded has no state to save.
        self._unknown: dict[int, weakref.ref[Any]] = {}

    def start(self) -> None:
        """Start to record."""
        global _handle
        from torch.optim.optimizer import register_optimizer_step_post_hook  # importing this must not import torch

        _active.append(self)
        if _handle is None:
            _handle = register_optimizer_step_post_hook(_on_step)

    def stop(self) -> None:
        """Stop to record. Idempotent."""
        global _handle
        if self in _active:
            _active.remove(self)
        if not _active and _handle is not None:
            _handle.remove()
            _handle = None

    def get_unknown(self) -> list[Any]:
        """Return the recorded optimizers that still exist."""
        return [optimizer for reference in self._unknown.values() if (optimizer := reference()) is not None]

    def is_recording(self) -> bool:
        """Return whether steps in this thread are recorded at the moment."""
        return threading.get_ident() == self._thread and not self._is_paused()

    def add(self, optimizer: Any) -> None:
        """Record an optimizer."""
        previous = self._unknown.get(id(optimizer))
        # The ID of a discarded optimizer may be used again.
        if previous is None or previous() is not optimizer:
            self._unknown[id(optimizer)] = weakref.ref(optimizer)
            self._on_new()


def _on_step(optimizer: Any, *_: Any) -> None:
    """Record an optimizer in the innermost run of this thread, unless a run knows it. Called after each step."""
    if any(id(optimizer) in steps.known for steps in _active):
        return
    steps = next((steps for steps in reversed(_active) if steps.is_recording()), None)
    if steps is not None:
        steps.add(optimizer)
