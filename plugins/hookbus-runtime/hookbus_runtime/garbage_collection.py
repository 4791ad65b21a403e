"""Garbage collection at fixed iterations."""

from __future__ import annotations

import gc
from typing import Any

from hookbus import Hook, every, hookimpl
from hookbus_runtime.config import GarbageCollectionConfig

__all__ = ["GarbageCollectionHook"]


class GarbageCollectionHook(Hook):
    """Disable automatic garbage collection during training, and collect garbage every N iterations instead.

    In distributed training all ranks then collect at the same iteration. Collections at different iterations delay
    every collective call.
    """

    Config = GarbageCollectionConfig
    makes_requests = False
    config: GarbageCollectionConfig

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self._was_enabled = False

    def before_train(self) -> None:
        """Run a full collection and disable automatic collection."""
        # `or`: a second training may start before `cleanup` of the first, with collection disabled by this hook.
        self._was_enabled = self._was_enabled or gc.isenabled()
        gc.collect()
        gc.disable()

    @hookimpl(when=every("interval"))
    def after_train_iter(self) -> None:
        """Collect garbage."""
        gc.collect(self.config.generation)

    def cleanup(self) -> None:
        """Enable automatic collection again, if it was enabled before the training."""
        if self._was_enabled:
            gc.enable()
        self._was_enabled = False
