"""Garbage collection at fixed iterations."""

from __future__ import annotations

import gc
from weakref import WeakSet

from hookbus import Hook, every, hookimpl
from hookbus_runtime.config import GarbageCollectionConfig

_disabled_by: WeakSet[GarbageCollectionHook] = WeakSet()
"""Hooks that have disabled automatic collection, which is a setting of the process."""


class GarbageCollectionHook(Hook):
    """Disable automatic garbage collection during training, and collect garbage every N iterations instead.

    In distributed training all ranks then collect at the same iteration. Collections at different iterations delay
    every collective call.
    """

    Config = GarbageCollectionConfig
    makes_requests = False
    config: GarbageCollectionConfig

    def before_train(self) -> None:
        """Run a full collection and disable automatic collection."""
        gc.collect()
        # If the user has disabled it, it stays disabled.
        if gc.isenabled() or _disabled_by:
            _disabled_by.add(self)
        gc.disable()

    @hookimpl(when=every("interval"))
    def after_train_iter(self) -> None:
        """Collect garbage."""
        gc.collect(self.config.generation)

    def cleanup(self) -> None:
        """Enable automatic collection again, if it was enabled before the training and no other hook disables it."""
        if self in _disabled_by:
            _disabled_by.remove(self)
            if not _disabled_by:
                gc.enable()
