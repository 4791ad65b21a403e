"""Loaders that yield the first batches of another one, and loaders whose order is fixed.

A map-style `DataLoader` is copied with a sampler that ends early, so that its workers read no further batch, and
everything that holds for a DataLoader holds for the copy. Any other loader is wrapped in a `LimitedLoader`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler, Sampler, SequentialSampler

from hookbus.data.loaders import clone_loader, index_sampler, is_rebuildable, loader_length
from hookbus.data.rng import SamplerRNG
from hookbus.data.workers import iter_loader

FIXED_SEED = 0
"""Seed of the batches of a custom sampler that are drawn once."""


class LimitedSampler(Sampler[Any]):
    """First steps of a sampler or batch sampler, in its order. It has the attributes of that sampler.

    Args:
        source: The sampler or batch sampler; its length is known.
        limit: Maximum number of steps: batches of indices, or indices.
    """

    def __init__(self, source: Any, limit: int) -> None:
        self.source, self.limit = source, limit

    def __getattr__(self, name: str) -> Any:
        # `source` is missing while the object is unpickled in a worker.
        if name.startswith("_") or name == "source":
            raise AttributeError(name)
        return getattr(self.source, name)

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self.source), self.limit)

    def __len__(self) -> int:
        return min(self.limit, len(self.source))


class FixedSampler(LimitedSampler):
    """First steps of a sampler, drawn once: the same in every epoch. The state of no RNG is changed.

    Args:
        source: The sampler or batch sampler; its length is known.
        limit: Maximum number of steps.
    """

    def __init__(self, source: Any, limit: int) -> None:
        super().__init__(source, limit)
        with SamplerRNG(source, FIXED_SEED).use():
            # Batches are copied: a batch sampler may reuse one list for all batches.
            self._steps = [copy.copy(step) for step in islice(iter(source), min(limit, len(source)))]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._steps)


class LimitedLoader:
    """First batches of a loader that cannot be copied with another sampler. It has the attributes of that loader.

    Args:
        loader: The loader.
        limit: Maximum number of batches per pass.
    """

    def __init__(self, loader: Any, limit: int) -> None:
        self.loader, self.limit = loader, limit

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "loader":
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __iter__(self) -> Iterator[Any]:
        return islice(iter_loader(self.loader), self.limit)

    def __len__(self) -> int:
        length = loader_length(self.loader)
        return self.limit if length is None else min(self.limit, length)


def limit_loader(loader: Any, limit: int) -> Any:
    """Return a loader of the first batches of each pass over a loader.

    Args:
        loader: The loader.
        limit: Maximum number of batches, of all shards together if the loader is sharded later.

    Returns:
        The loader itself if it is known to have no more batches.
    """
    length = loader_length(loader)
    if length is not None and length <= limit:
        return loader
    if hasattr(loader, "state_dict") or not is_rebuildable(loader):
        return LimitedLoader(loader, limit)
    return clone_loader(loader, LimitedSampler(index_sampler(loader), limit))


def find_order_problem(loader: Any) -> str:
    """Return the reason why the order of a loader cannot be fixed; "" if it can."""
    if isinstance(loader, Sequence):
        return ""
    if not isinstance(loader, DataLoader):
        return f"it is no DataLoader but an object of the class {type(loader).__name__}, whose order is unknown"
    if hasattr(loader, "state_dict"):
        return f"{type(loader).__name__} saves its own position, which a copy with another sampler would not know"
    if type(loader).__iter__ is not DataLoader.__iter__:
        return f"{type(loader).__name__} defines its own `__iter__`, which may change the order"
    return "" if is_rebuildable(loader) else "its dataset is iterable or has no length, so that it has no sampler"


def fix_order(loader: Any, limit: int) -> Any:
    """Return a loader that yields the same first batches in every pass.

    The samples are read in the order of the dataset if the loader shuffles them (`shuffle=True`), and in the order of a
    `DistributedSampler(shuffle=False)` if it has a DistributedSampler. The batches of any other sampler are drawn once.

    Args:
        loader: A loader for which `find_order_problem` returns "".
        limit: Maximum number of batches.
    """
    if isinstance(loader, Sequence):
        return limit_loader(loader, limit)
    source = index_sampler(loader)
    if loader.batch_sampler is None:
        ordered = _order_sampler(source)
    else:  # exact type: the batches of a subclass may have a structure
        ordered = _order_batches(source) if type(source) is BatchSampler else None
    if ordered is None:
        return clone_loader(loader, FixedSampler(source, limit))
    return limit_loader(clone_loader(loader, ordered), limit)


def _order_batches(source: BatchSampler) -> BatchSampler | None:
    inner = _order_sampler(source.sampler)
    return None if inner is None else BatchSampler(inner, source.batch_size, source.drop_last)


def _order_sampler(sampler: Any) -> Any:
    """Return a sampler that does not shuffle; None if only the sampler itself knows its samples."""
    # Exact types: the samples of a subclass may differ.
    if type(sampler) is RandomSampler:
        return SequentialSampler(sampler.data_source)
    if type(sampler) is DistributedSampler:
        ordered = copy.copy(sampler)
        ordered.shuffle = False
        return ordered
    return sampler if type(sampler) is SequentialSampler else None
