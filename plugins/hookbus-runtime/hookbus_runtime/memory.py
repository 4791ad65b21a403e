"""Release of cached device memory."""

from __future__ import annotations

import torch

from hookbus import Hook, hookimpl
from hookbus_runtime.config import EmptyCacheConfig


def empty_cache() -> None:
    """Release the cached memory of the accelerator; a no-op without an accelerator."""
    if torch.accelerator.is_available():
        torch.accelerator.memory.empty_cache()


class EmptyCacheHook(Hook):
    """Release cached device memory at epochs and iterations of training, validation and test.

    Other processes can then use the memory, and fragmentation is reduced; the next allocations are slower. Without an
    accelerator the hook is a no-op.
    """

    Config = EmptyCacheConfig
    makes_requests = False
    config: EmptyCacheConfig

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
