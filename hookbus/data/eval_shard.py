"""Shard of the evaluation data that a rank reads: every `world_size`-th batch.

Batches are not split, so the results of a batch are those of a single process, and each sample is evaluated exactly
once. There is no padding: a rank may have one batch fewer than another, or none.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, Sampler, SequentialSampler

from hookbus.data.loaders import clone_loader, index_sampler, is_rebuildable
from hookbus.data.seeded_sampler import PassPosition, SeededSampler


def shard_loader(loader: Any, rank: int, world_size: int, seed: int) -> DataLoader[Any] | None:
    """Return a copy of a loader that reads the batches `rank`, `rank + world_size`, ... only.

    A torch DistributedSampler, which pads, is replaced with a sequential sampler of the full dataset.

    Args:
        loader: The loader of a single process, equal on all ranks.
        rank: Rank of this process, from 0.
        world_size: Number of processes.
        seed: Seed of the order if the loader shuffles, equal on all ranks.

    Returns:
        The loader of this rank. None if the loader cannot be sharded, because it is not a map-style DataLoader or its
        sampler shards the data already (it has an attribute `num_replicas`).
    """
    if not is_rebuildable(loader):
        return None
    batched, source = loader.batch_sampler is not None, _get_full_sampler(loader)
    if source is None:
        return None
    return clone_loader(loader, StridedSampler(source, batched=batched, first=rank, every=world_size, seed=seed))


class StridedSampler(Sampler[Any]):
    """Every n-th step of a sampler or batch sampler, from a first step on.

    Args:
        source: Yields indices or batches of indices; its length is known.
        batched: Whether `source` yields batches.
        first: Index of the first step, from 0.
        every: Distance between two steps.
        seed: Seed of the order if it is random.
    """

    def __init__(self, source: Any, *, batched: bool, first: int, every: int, seed: int) -> None:
        self._source, self._first, self._every, self._seed = source, first, every, seed
        self._sampler = SeededSampler(source, batched=batched, keyed=False)

    def __iter__(self) -> Iterator[Any]:
        # The same epoch and seed each time, so that all ranks agree on the order without communication.
        self._sampler.set_position(PassPosition(0), self._seed)
        return islice(iter(self._sampler), self._first, None, self._every)

    def __len__(self) -> int:
        return len(range(self._first, len(self._source), self._every))


def _get_full_sampler(loader: DataLoader[Any]) -> Any:
    """Return the sampler of the full dataset, or None if the loader shards the data itself."""
    source = index_sampler(loader)
    sampler = source if loader.batch_sampler is None else getattr(source, "sampler", source)
    if isinstance(sampler, DistributedSampler):
        # Its padding evaluates some samples twice, which changes the results.
        full: Any = SequentialSampler(loader.dataset)  # type: ignore[arg-type]
        return full if sampler is source else BatchSampler(full, source.batch_size, source.drop_last)
    return None if hasattr(sampler, "num_replicas") else source
