"""Which batches does this process judge? Every so many-th one, so that all processes together judge each batch once.

Batches stay whole and are those of one process: each sample counts once, and what is found about a batch is what one
process would find. Nothing is padded, so a process may judge a batch less than another, or none at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, Sampler, SequentialSampler

from hookbus.training.loaders import can_be_rebuilt, rebuilt, source_of
from hookbus.training.seeding import Plan

__all__ = ["Share", "share_of"]


def share_of(loader: Any, rank: int, world_size: int, seed: int) -> DataLoader[Any] | None:
    """What one process judges of a loader: the batches `rank`, `rank + world_size`, ...

    A torch DistributedSampler, which pads, makes way for the whole data in order.

    Args:
        loader: the loader that one process would judge, the same on all processes.
        rank: the number of this process, from 0.
        world_size: how many there are.
        seed: what a random order of it follows from, so that it is the same on all.

    Returns:
        A loader that reads no other batches. None where there can be none, so that the loader has to give each process
        a part of its own: it is no map-style DataLoader, or its sampler knows of processes (it has `num_replicas`).
    """
    if not can_be_rebuilt(loader):
        return None
    batched, source = loader.batch_sampler is not None, _whole_source_of(loader)
    if source is None:
        return None
    share = Share(source, batched=batched, first=rank, every=world_size, seed=seed)
    return rebuilt(loader, share)


class Share(Sampler[Any]):
    """Every so many-th step of a sampler or batch sampler, from one on.

    Args:
        source: yields indices or batches of them, and knows its length.
        batched: whether it yields batches.
        first: the first step, from 0.
        every: so many steps from one to the next.
        seed: what its order follows from, where that is random.
    """

    def __init__(self, source: Any, *, batched: bool, first: int, every: int, seed: int) -> None:
        self._source, self._first, self._every, self._seed = source, first, every, seed
        self._plan = Plan(source, batched=batched, keyed=False)

    def __iter__(self) -> Iterator[Any]:
        self._plan.draw(0, 0, self._seed)
        return islice(iter(self._plan), self._first, None, self._every)

    def __len__(self) -> int:
        return len(range(self._first, len(self._source), self._every))


def _whole_source_of(loader: DataLoader[Any]) -> Any:
    """What yields the indices of the whole data; None where the loader's own knows of processes."""
    source = source_of(loader)
    sampler = source if loader.batch_sampler is None else getattr(source, "sampler", source)
    if isinstance(sampler, DistributedSampler):
        whole: Any = SequentialSampler(loader.dataset)  # type: ignore[arg-type]
        return whole if sampler is source else BatchSampler(whole, source.batch_size, source.drop_last)
    return None if hasattr(sampler, "num_replicas") else source
