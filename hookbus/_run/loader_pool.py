"""Resumable loaders of a run, kept so that persistent workers serve several epochs, and checks of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from hookbus._run.data_passes import DataPass
from hookbus.errors import LoopError, RankError

if TYPE_CHECKING:
    from hookbus.data.iterated_loaders import ResumableLoader
    from hookbus.data.samplers import TrainShard
    from hookbus.data.seeded_dataset import DatasetHook
    from hookbus.distributed.collectives import Collectives

SIZE = 4
"""Number of loaders that are kept for later passes."""


class LoaderPool:
    """Resumable loaders by training loader.

    Attributes:
        dataset_hooks: Functions that modify the datasets while they are read, with the hooks that have registered them.
        shard: Shard of the training data that this rank reads; None for all of it.
        used: Whether a loader has been read.
    """

    def __init__(self) -> None:
        self._kept: list[tuple[object, ResumableLoader]] = []  # least recently used first
        self.dataset_hooks: list[tuple[DatasetHook, str]] = []
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

    def set_dataset_hooks(self, dataset_hooks: list[tuple[DatasetHook, str]]) -> None:
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
        return make_resumable(loader, seed, [hook for hook, _ in self.dataset_hooks], self.shard)


def check_equal_lengths(ranks: Collectives, length: int | None) -> None:
    """Check that the loaders of all ranks have the same number of batches.

    Otherwise the gradient all-reduce of a rank with more batches would deadlock.

    Raises:
        RankError: If the numbers differ.
    """
    lengths = ranks.all_gather("batches per epoch", length)
    if len(set(lengths)) > 1:
        raise RankError(
            f"The training loaders of the ranks must have the same number of batches, got "
            f"{', '.join(map(str, lengths))}. Make the sampler drop or repeat samples, as DistributedSampler does."
        )


def check_not_empty(data_pass: DataPass, shard: TrainShard | None = None) -> None:
    """Check that a loader has yielded a batch.

    Args:
        data_pass: Complete pass over the loader.
        shard: The batches that this rank reads. Default: all batches.

    Raises:
        LoopError: If it has not.
    """
    if data_pass.position:
        return
    from hookbus.data.loaders import loader_length  # imports torch, which a run without a loader does not need

    count = loader_length(data_pass.loader)
    if shard is not None and count and not loader_length(data_pass.loader, shard):
        raise LoopError(
            f"The training loader has too few samples for {shard.world_size} processes, got "
            f"{count} {'batch' if count == 1 else 'batches'} in total. Use fewer processes or more data."
        )
    raise LoopError(
        "The training loader yielded no batch. Pass a loader that can be iterated in every epoch (an iterator "
        "is exhausted after one) and has at least one batch (check drop_last)."
    )


def warn_changed_length(logger: logging.Logger, data_pass: DataPass, saved_length: int | None) -> None:
    """Warn if the loader of a resumed pass does not have the length of the loader in the checkpoint."""
    if saved_length is not None and saved_length != data_pass.length:
        logger.warning(
            "resume: the loader of this pass had %s batches when the checkpoint was written, and has %s. The pass "
            "continues after batch %s. Call run.batches for the same loaders in the same order.",
            saved_length,
            data_pass.length,
            data_pass.position,
        )
