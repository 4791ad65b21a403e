"""Number of indices from which each batch of a DataLoader is loaded.

DataLoader requests batches ahead of time, so the lengths of the index lists are queued until their batch arrives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

from torch.utils.data import DataLoader, IterableDataset


class SizedBatches:
    """Iterator over the batches of a DataLoader.

    Args:
        batches: Iterator of the loader.
        sizes: Queue of the sizes of the batches that were requested.

    Attributes:
        size: Number of indices that the batch sampler yielded for the last batch; None if it is unknown.
    """

    def __init__(self, batches: Iterator[Any], sizes: deque[int | None]) -> None:
        self._batches, self._sizes = batches, sizes
        self.size: int | None = None

    def __iter__(self) -> SizedBatches:
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)

    def __next__(self) -> Any:
        try:
            return next(self._batches)
        finally:
            # Also after an error: the loader continues with the next batch.
            self.size = self._sizes.popleft() if self._sizes else None


class SizeRecorder:
    """Sampler or batch sampler that records the number of indices of each step.

    Args:
        source: The sampler or batch sampler.
        batched: Whether `source` yields batches of indices.
        limit: Maximum number of batches that are requested ahead of time.
    """

    def __init__(self, source: Any, *, batched: bool, limit: int) -> None:
        self._source, self._batched, self._limit = source, batched, limit
        self.sizes: deque[int | None] | None = None  # of the last iterator

    def __iter__(self) -> Iterator[Any]:
        # One queue for each iterator: a loader may be read twice at the same time.
        sizes: deque[int | None] = deque(maxlen=self._limit)
        self.sizes = sizes
        return self._record(sizes)

    def __len__(self) -> int:
        return len(self._source)

    def _record(self, sizes: deque[int | None]) -> Iterator[Any]:
        for step in self._source:
            sizes.append(len(step) if self._batched else _count_indices(step))
            yield step


def iter_sized(loader: DataLoader[Any]) -> Iterator[Any]:
    """Return an iterator over a DataLoader, a `SizedBatches` if the order of the batches is that of the batch sampler.

    Args:
        loader: The loader, which is unchanged afterwards.
    """
    if not _is_ordered(loader):
        return iter(loader)
    # DataLoader rejects another sampler after its construction.
    name = "sampler" if loader.batch_sampler is None else "batch_sampler"
    source = getattr(loader, name)
    recorder = _recorders.setdefault(
        loader,
        SizeRecorder(
            source, batched=name == "batch_sampler", limit=loader.num_workers * (loader.prefetch_factor or 0) + 2
        ),
    )
    recorder.sizes, vars(loader)[name] = None, recorder
    try:
        batches = iter(loader)
    finally:
        vars(loader)[name] = source
    return batches if recorder.sizes is None else SizedBatches(batches, recorder.sizes)


def _is_ordered(loader: DataLoader[Any]) -> bool:
    """Whether each batch contains the samples of the next step of the sampler."""
    # The last batch of an iterable dataset may be smaller, and a subclass may change batches in its `__iter__`.
    if isinstance(loader.dataset, IterableDataset) or type(loader).__iter__ is not DataLoader.__iter__:
        return False
    return loader.num_workers == 0 or loader.in_order


def _count_indices(step: Any) -> int | None:
    """Return the number of indices of a step of a sampler without batches: a list, also in the key of a dataset."""
    while isinstance(step, tuple) and step:
        step = step[-1]
    return len(step) if isinstance(step, list) else None


_recorders: WeakKeyDictionary[Any, SizeRecorder] = WeakKeyDictionary()
"""Recorder of each loader: the iterator of persistent workers keeps the sampler with which it was created."""
