"""Release of cached device memory, and garbage collection at fixed iterations."""

from __future__ import annotations

import gc
from weakref import WeakSet

import torch

from hookbus import Hook, Needs, every, hookimpl
from hookbus_runtime.config import EmptyCacheConfig, GarbageCollectionConfig


def empty_cache() -> None:
    """Release the cached memory of the accelerator; a no-op without an accelerator."""
    if torch.accelerator.is_available():
        torch.get_device_module().empty_cache()


class EmptyCacheHook(Hook):
    """Release cached device memory at epochs and iterations of training, validation and test.

    Other processes can then use the memory, and fragmentation is reduced; the next allocations are slower. Without an
    accelerator the hook is a no-op.
    """

    Config = EmptyCacheConfig
    makes_requests = False
    config: EmptyCacheConfig

    @property
    def needs(self) -> Needs:
        """The points of epochs at which the cache is released."""
        points = {"before_train_epoch": self.config.before_epoch, "after_train_epoch": self.config.after_epoch}
        return Needs(points=[point for point, is_used in points.items() if is_used])

    @hookimpl(frequency=False)
    def before_train_epoch(self) -> None:
        """Release the cache, if configured."""
        if self.config.before_epoch:
            empty_cache()

    before_val_epoch = before_test_epoch = before_train_epoch

    @hookimpl(frequency=False)
    def after_train_epoch(self) -> None:
        """Release the cache, if configured."""
        if self.config.after_epoch:
            empty_cache()

    after_val_epoch = after_test_epoch = after_train_epoch

    def after_train_iter(self) -> None:
        """Release the cache, if configured."""
        if self.config.after_iter:
            empty_cache()

    after_val_iter = after_test_iter = after_train_iter


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
