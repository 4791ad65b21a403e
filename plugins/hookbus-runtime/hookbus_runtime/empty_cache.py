"""Gives the cached memory of the device back."""

from __future__ import annotations

import torch

from hookbus import Hook
from hookbus_runtime.config import EmptyCacheConfig

__all__ = ["EmptyCacheHook", "empty_cache"]


def empty_cache() -> None:
    """Give back what the allocator of the accelerator keeps; nothing where there is no accelerator."""
    if torch.accelerator.is_available():
        torch.accelerator.memory.empty_cache()


class EmptyCacheHook(Hook):
    """Gives the cached memory of the device back, at epochs and iterations of training, validation and test.

    It makes room for other processes and against fragmentation; the next allocation is slower. Without an accelerator
    it does nothing.
    """

    Config = EmptyCacheConfig
    makes_requests = False
    config: EmptyCacheConfig

    def before_train_epoch(self) -> None:
        """Give it back, where that is wanted."""
        if self.config.before_epoch:
            empty_cache()

    before_val_epoch = before_test_epoch = before_train_epoch

    def after_train_epoch(self) -> None:
        """Give it back, where that is wanted."""
        if self.config.after_epoch:
            empty_cache()

    after_val_epoch = after_test_epoch = after_train_epoch

    def after_train_iter(self) -> None:
        """Give it back, where that is wanted."""
        if self.config.after_iter:
            empty_cache()

    after_val_iter = after_test_iter = after_train_iter
