"""Data loaders that resume at any batch of any epoch.

The order of the samples is a function of (seed, epoch), and the augmentation of a sample a function of (seed, epoch,
index). A resumed run therefore starts at its batch without reading the earlier ones, with any number of workers, and
reads what the uninterrupted run would have read. No generator state is saved.

* A map-style `DataLoader` is copied with a dataset that seeds each sample. The position is exact, and no batch is read
  twice. Loaders of Accelerate and Fabric are copied with such a copy of the DataLoader that they wrap.
* A loader with `state_dict` and `load_state_dict` restores its own position. It is as exact as the loader.
* Any other iterable is read again up to the position, and a warning is logged.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, default_collate, default_convert

from hookbus.data.iterated_loaders import ReplayLoader, ResumableLoader, StatefulLoader, saves_position
from hookbus.data.limited_loader import LimitedLoader
from hookbus.data.loaders import (
    clone_loader,
    clone_wrapper,
    epoch_aware_datasets,
    get_base_loader,
    index_sampler,
    is_deterministic,
    is_shardable,
    loader_length,
    set_epoch,
)
from hookbus.data.samplers import PassPosition, SeededSampler, TrainShard
from hookbus.data.seeded_dataset import DatasetHook, HookedDataset, SeededDataset, collate_seeded, init_dataset_worker
from hookbus.data.workers import SizedBatches, iter_loader
from hookbus.errors import LoopError


@dataclass(frozen=True, slots=True)
class Splits:
    """Return value of a factory in `hookbus.datasets`.

    Attributes:
        train: Training dataset or data loader.
        val: Validation dataset or data loader; None if there is no such split.
        test: Test dataset or data loader; None if there is no such split.
        input_shape: Shape of one input without the batch dimension, for models that require it.
        num_classes: Number of classes, for models that require it.
        predict: Dataset or data loader to predict, with or without targets; None if there is no such split.
    """

    train: Any
    val: Any = None
    test: Any = None
    input_shape: tuple[int, ...] | None = None
    num_classes: int | None = None
    predict: Any = None


class SeededLoader(ResumableLoader):
    """Copies of a map-style DataLoader, whose order and augmentation depend on seed and position only.

    There is one copy, unless several passes are in progress at once and each of them requires its own workers.

    Args:
        loader: A map-style DataLoader, or a wrapper around one.
        seed: Seed of order and augmentation, combined with the position.
        dataset_hooks: Functions called with the dataset before the samples of each iteration are read.
        shard: The batches that this rank reads. Default: all batches.
    """

    def __init__(
        self,
        loader: Any,
        seed: int,
        dataset_hooks: Sequence[DatasetHook] = (),
        shard: TrainShard | None = None,
    ) -> None:
        base = get_base_loader(loader)
        assert base is not None
        # Persistent workers keep their copy of the dataset, so `set_epoch` has to be called in the workers.
        if base.persistent_workers and epoch_aware_datasets(base.dataset):
            dataset_hooks = [WorkerEpochHook(), *dataset_hooks]
        super().__init__(loader, dataset_hooks)
        self._base, self._seed = base, seed
        self._shard = shard if is_shardable(loader) else None
        self.length = loader_length(loader, self._shard)
        # The default collate functions draw no random numbers, so deterministic datasets are read without wrappers.
        self._collates = base.collate_fn not in (default_collate, default_convert)
        self._keyed = self._collates or not is_deterministic(base.dataset)
        # Persistent workers, and the loaders of Accelerate, serve one iterator at a time.
        self._exclusive = base is not loader or (base.num_workers > 0 and base.persistent_workers)
        self._idle = [self._build_copy()]

    def batches(self, position: PassPosition, start: Mapping[str, Any] | None = None) -> Iterator[Any]:
        """Return an iterator over the remaining batches of a pass; `start` is ignored."""
        # Before the order is sampled: the length and the order of a sampler may depend on the epoch.
        set_epoch(self._loader, position.epoch)
        copy = self._idle.pop() if self._idle else self._build_copy()
        loader, base = copy
        if loader is not base:
            set_epoch(loader, position.epoch)
        seed = position.derive_seed(self._seed)
        self.length = index_sampler(base).set_position(position, seed)
        # DataLoader draws the base seed of its workers from this generator, and would otherwise advance the global RNG.
        base.generator.manual_seed(seed)
        # Some wrappers raise an exception if their loader has no batch.
        is_complete = loader is not base and position.skip >= self.length
        batches = iter(()) if is_complete else iter_loader(loader)
        if not self._exclusive:
            self._idle.append(copy)
            return batches
        # The copy is idle again when this object is deleted; the iterator of persistent workers itself is not.
        lent = batches if isinstance(batches, SizedBatches) else SizedBatches(batches, deque())
        weakref.finalize(lent, self._idle.append, copy).atexit = False
        return lent

    def _build_copy(self) -> tuple[Any, DataLoader[Any]]:
        """Return a copy of the loader, and the DataLoader that it wraps, or itself."""
        base, hooks = self._base, self._dataset_hooks
        sampler = SeededSampler(
            index_sampler(base),
            batched=base.batch_sampler is not None,
            keyed=self._keyed,
            numbered=bool(hooks),
            shard=self._shard,
        )
        dataset: Any = base.dataset
        if self._keyed:
            dataset = SeededDataset(dataset, self._seed, for_collate=self._collates)
        clone = clone_loader(
            base,
            sampler,
            dataset=HookedDataset(dataset, hooks) if hooks else dataset,
            collate_fn=partial(collate_seeded, base.collate_fn) if self._collates else base.collate_fn,
            generator=torch.Generator(),
            worker_init_fn=partial(init_dataset_worker, base.worker_init_fn),
        )
        return clone_wrapper(self._loader, clone), clone


class LimitedResumableLoader(ResumableLoader):
    """First batches of each pass over another resumable loader.

    Args:
        source: The resumable loader.
        limit: Maximum number of batches per pass.
    """

    def __init__(self, source: ResumableLoader, limit: int) -> None:
        self._source, self._limit = source, limit
        self.exact, self.concurrent = source.exact, source.concurrent
        self.length = self._get_length()

    def batches(self, position: PassPosition, start: Mapping[str, Any] | None = None) -> Iterator[Any]:
        """Return an iterator over the remaining batches of a pass, see `ResumableLoader.batches`."""
        batches = self._source.batches(position, start)
        self.length = self._get_length()
        return islice(batches, max(self._limit - position.skip, 0))

    def _get_length(self) -> int:
        length = self._source.length
        return self._limit if length is None else min(length, self._limit)

    def get_start_state(self) -> dict[str, Any]:
        """Return the state to save for a pass that is about to start."""
        return self._source.get_start_state()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the loader itself."""
        return self._source.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state returned by `state_dict()`."""
        self._source.load_state_dict(state)


class WorkerEpochHook:
    """Dataset hook that calls `set_epoch` of the datasets in a persistent worker, once per epoch.

    A persistent worker keeps its copy of the datasets, so calls in the main process do not reach it.
    """

    def __init__(self) -> None:
        self._last_epoch: int | None = None

    def __call__(self, dataset: Any, epoch: int, iteration: int) -> None:
        """Call `set_epoch` in the first iteration of an epoch."""
        if epoch != self._last_epoch:
            self._last_epoch = epoch
            for nested in epoch_aware_datasets(dataset):
                nested.set_epoch(epoch)


def make_resumable(
    loader: Iterable[Any], seed: int, dataset_hooks: Sequence[DatasetHook] = (), shard: TrainShard | None = None
) -> ResumableLoader:
    """Wrap a loader such that it can be resumed, with the most exact implementation for its type.

    Args:
        loader: A DataLoader, or any iterable that can be iterated once per epoch.
        seed: Seed of order and augmentation, combined with the epoch.
        dataset_hooks: Functions called with the dataset before the samples of each iteration are read.
        shard: The batches that this rank reads. Default: all batches. Ignored for loaders that are not map-style
            DataLoaders and for samplers that shard the data already (with an attribute `num_replicas`).

    Raises:
        LoopError: If there are dataset hooks and they cannot be called in the workers of the loader.
    """
    if isinstance(loader, LimitedLoader):
        return LimitedResumableLoader(make_resumable(loader.loader, seed, dataset_hooks, shard), loader.limit)
    stateful = saves_position(loader)
    if not stateful and get_base_loader(loader) is not None:
        return SeededLoader(loader, seed, dataset_hooks, shard)
    workers: int = getattr(loader, "num_workers", 0)
    if dataset_hooks and workers:
        raise LoopError(
            "train_loader: hooks that change the dataset require a DataLoader of a map-style dataset or a loader "
            f"without workers, got {type(loader).__name__} with num_workers={workers}. Use a map-style dataset, or set "
            "num_workers=0."
        )
    return StatefulLoader(loader, dataset_hooks) if stateful else ReplayLoader(loader, dataset_hooks)
