"""Resumable loaders of a run, which are kept so that persistent workers serve several epochs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hookbus.data.resumable_loader import ResumableLoader
    from hookbus.data.seeded_dataset import DatasetHook
    from hookbus.data.train_shard import TrainShard

SIZE = 4
"""Number of loaders that are kept for later passes."""


class LoaderPool:
    """Resumable loaders by training loader.

    Attributes:
        dataset_hooks: Functions that modify the datasets while they are read.
        shard: Shard of the training data that this rank reads; None for all of it.
        used: Whether a loader has been read.
    """

    def __init__(self) -> None:
        self._kept: list[tuple[object, ResumableLoader]] = []  # least recently used first
        self.dataset_hooks: list[DatasetHook] = []
        self.shard: TrainShard | None = None
        self.used = False

    def __contains__(self, loader: object) -> bool:
        return any(kept is loader for kept, _ in self._kept)

    def get(self, loader: Iterable[Any], seed: int, logger: logging.Logger) -> ResumableLoader:
        """Return the resumable loader of a training loader.

        Args:
            loader: The training loader.
            seed: Seed of order and augmentation.
            logger: Logger for a loader that cannot be sharded.
        """
        self.used = True
        kept = next((pair for pair in self._kept if pair[0] is loader), None)
        if kept is None:
            kept = (loader, self.build(loader, seed, logger))
        else:
            self._kept.remove(kept)
        self._kept = [*self._kept[1 - SIZE :], kept]
        return kept[1]

    def set_dataset_hooks(self, dataset_hooks: list[DatasetHook]) -> None:
        """Replace the functions that modify the datasets. A pass in progress ends with the former ones."""
        # Workers have copies of the functions and have read ahead, so the loaders are built again.
        self.dataset_hooks = dataset_hooks
        self._kept.clear()

    def keep(self, is_used: Callable[[ResumableLoader], bool]) -> None:
        """Release all loaders but some, and thereby end their workers."""
        self._kept = [pair for pair in self._kept if is_used(pair[1])]

    def build(self, loader: Iterable[Any], seed: int, logger: logging.Logger) -> ResumableLoader:
        """Return a new resumable loader of a training loader, which is not kept. See `get`."""
        # Imports torch, which a run without a loader does not need.
        from hookbus.data.loaders import is_shardable
        from hookbus.data.resumable_loader import make_resumable

        if self.shard is not None and not is_shardable(loader):
            logger.info(
                "The training loader cannot be sharded automatically, so each of the %s processes reads it unchanged. "
                "Make the loader yield different samples on each rank.",
                self.shard.world_size,
            )
        return make_resumable(loader, seed, self.dataset_hooks, self.shard)
