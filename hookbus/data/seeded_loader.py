"""Map-style DataLoaders whose order and augmentation depend on seed and position only.

The position is exact, no batch is read twice, and no state is saved. The number of workers does not change the batches.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, default_collate, default_convert

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
from hookbus.data.seeded_dataset import DatasetHook, HookedDataset, SeededCollate, SeededDataset, WorkerInit
from hookbus.data.seeded_sampler import PassPosition, SeededSampler
from hookbus.data.train_shard import TrainShard
from hookbus.data.workers import iter_loader


class SeededLoader:
    """Copies of a map-style DataLoader, whose order and augmentation depend on seed and position only.

    There is one copy, unless several passes are in progress at once and each of them requires its own workers.

    Args:
        loader: A map-style DataLoader, or a wrapper around one.
        seed: Seed of order and augmentation, combined with the position.
        dataset_hooks: Functions called with the dataset before the samples of each iteration are read.
        shard: The batches that this rank reads. Default: all batches.
    """

    exact = True
    concurrent = True

    def __init__(
        self,
        loader: Any,
        seed: int,
        dataset_hooks: Sequence[DatasetHook] = (),
        shard: TrainShard | None = None,
    ) -> None:
        base = get_base_loader(loader)
        assert base is not None
        self._loader, self._base, self._seed = loader, base, seed
        self._shard = shard if is_shardable(loader) else None
        self.length = loader_length(loader, self._shard)
        # Persistent workers keep their copy of the dataset, so `set_epoch` has to be called in the workers.
        if base.persistent_workers and epoch_aware_datasets(base.dataset):
            dataset_hooks = [WorkerEpochHook(), *dataset_hooks]
        self._dataset_hooks = dataset_hooks
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
        if copy.loader is not copy.base:
            set_epoch(copy.loader, position.epoch)
        seed = position.derive_seed(self._seed)
        self.length = copy.sampler.set_position(position, seed)
        # DataLoader draws the base seed of its workers from this generator, and would otherwise advance the global RNG.
        copy.generator.manual_seed(seed)
        # Some wrappers raise an exception if their loader has no batch.
        is_complete = copy.loader is not copy.base and position.skip >= self.length
        batches = iter(()) if is_complete else iter_loader(copy.loader)
        if not self._exclusive:
            self._idle.append(copy)
            return batches
        lent = LentBatches(batches)
        weakref.finalize(lent, self._idle.append, copy).atexit = False
        return lent

    def get_start_state(self) -> dict[str, Any]:
        """Return {}: the position determines the batches."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return {}: the position determines the batches."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Do nothing: the position determines the batches."""

    def _build_copy(self) -> LoaderCopy:
        base, hooks, generator = self._base, self._dataset_hooks, torch.Generator()
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
            collate_fn=SeededCollate(base.collate_fn) if self._collates else base.collate_fn,
            generator=generator,
            worker_init_fn=WorkerInit(base.worker_init_fn),
        )
        return LoaderCopy(clone_wrapper(self._loader, clone), clone, sampler, generator)


class LentBatches:
    """Iterator over the batches of a copy, which is idle again when the iterator is deleted."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches

    def __iter__(self) -> LentBatches:
        return self

    def __next__(self) -> Any:
        return next(self._batches)

    @property
    def size(self) -> int | None:
        """Number of indices of the last batch; None if it is unknown."""
        return getattr(self._batches, "size", None)


class LoaderCopy(NamedTuple):
    """Copy of a loader, with the DataLoader that it wraps, its sampler and the generator of its base seed."""

    loader: Any
    base: DataLoader[Any]
    sampler: SeededSampler
    generator: torch.Generator


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
