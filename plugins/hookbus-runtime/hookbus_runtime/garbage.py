"""Garbage is collected at moments of its own, so that it interrupts no iteration by surprise."""

from __future__ import annotations

import gc
from typing import Any

from hookbus import Hook, every, hookimpl
from hookbus_runtime.config import GarbageCollectionConfig

__all__ = ["GarbageCollectionHook"]


class GarbageCollectionHook(Hook):
    """Switches automatic collection off while a training runs, and collects every so many iterations.

    With several processes, all collect at the same iteration, instead of each making the others wait in turn.
    """

    Config = GarbageCollectionConfig
    makes_requests = False
    config: GarbageCollectionConfig

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self._was_on = False

    def before_train(self) -> None:
        """Collect everything once, then only when it is due."""
        self._was_on = self._was_on or gc.isenabled()
        gc.collect()
        gc.disable()

    @hookimpl(when=every("interval"))
    def after_train_iter(self) -> None:
        """Collect."""
        gc.collect(self.config.generation)

    def cleanup(self) -> None:
        """Leave automatic collection as it was."""
        if self._was_on:
            gc.enable()
        self._was_on = False
