"""Data loaders that resume at any batch of any epoch.

The order of the samples is a function of (seed, epoch), and the augmentation of a sample a function of (seed, epoch,
index). A resumed run therefore starts at its batch without reading the earlier ones, with any number of workers, and
reads what the uninterrupted run would have read. No generator state is saved.

* A map-style `DataLoader` is copied with a dataset that seeds each sample. The position is exact.
* A loader with `state_dict` and `load_state_dict` restores its own position. It is as exact as the loader.
* Any other iterable is read again up to the position, and a warning is logged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader, default_collate, default_convert

from hookbus.data.loaders import (
    clone_loader,
    epoch_aware_datasets,
    get_dataset,
    index_sampler,
    is_deterministic,
    is_rebuildable,
    is_shardable,
    loader_length,
    set_epoch,
)
from hookbus.data.rng import derive_seed, get_rng_state, isolate_rng, set_rng_state
from hookbus.data.seeded_dataset import (
    DatasetHook,
    HookedDataset,
    SeededCollate,
    SeededDataset,
    SeededSampler,
    WorkerInit,
    apply_dataset_hooks,
)
from hookbus.data.train_shard import TrainShard
from hookbus.data.workers import iter_loader
from hookbus.errors import LoopError

__all__ = ["ResumableLoader", "Splits", "make_resumable"]


@dataclass(frozen=True, slots=True)
class Splits:
    """Return value of a factory in `hookbus.datasets`.

    Attributes:
        train: Training dataset or data loader.
        val: Validation dataset or data loader; None if there is no such split.
        test: Test dataset or data loader; None if there is no such split.
        input_shape: Shape of one input without the batch dimension, for models that require it.
        num_classes: Number of classes, for models that require it.
    """

    train: Any
    val: Any = None
    test: Any = None
    input_shape: tuple[int, ...] | None = None
    num_classes: int | None = None


class ResumableLoader(Protocol):
    """Loader that can be read from any position of any epoch.

    Attributes:
        exact: Whether the position is reached without reading the batches before it.
        length: Number of batches per epoch, or None if it is unknown.
    """

    exact: bool
    length: int | None

    def batches(self, epoch: int, skip: int, iteration: int = 0) -> Iterator[Any]:
        """Return an iterator over the batches of an epoch.

        Args:
            epoch: Index of the epoch.
            skip: Number of batches to skip at the start of the epoch.
            iteration: Iteration of the first batch that is not skipped.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return the state to save in addition to epoch and position."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state returned by `state_dict()`."""


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
    saves_position = hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")
    if not saves_position and is_rebuildable(loader):
        return SeededLoader(loader, seed, dataset_hooks, shard)  # type: ignore[arg-type]
    workers: int = getattr(loader, "num_workers", 0)
    if dataset_hooks and workers:
        raise LoopError(
            "train_loader: hooks that change the dataset require a DataLoader of a map-style dataset or a loader "
            f"without workers, got {type(loader).__name__} with num_workers={workers}. Use a map-style dataset, or set "
            "num_workers=0."
        )
    return StatefulLoader(loader, dataset_hooks) if saves_position else ReplayLoader(loader, dataset_hooks)


class SeededLoader:
    """Copy of a map-style DataLoader whose order and augmentation depend on seed and epoch only."""

    exact = True

    def __init__(
        self,
        loader: DataLoader[Any],
        seed: int,
        dataset_hooks: Sequence[DatasetHook] = (),
        shard: TrainShard | None = None,
    ) -> None:
        self._loader, self._seed = loader, seed
        self._generator = torch.Generator()
        shard = shard if is_shardable(loader) else None
        self.length = loader_length(loader, shard)
        # Persistent workers keep their copy of the dataset, so `set_epoch` has to be called in the workers.
        if loader.persistent_workers and epoch_aware_datasets(loader.dataset):
            dataset_hooks = [WorkerEpochHook(), *dataset_hooks]
        # The default collate functions draw no random numbers, so deterministic datasets are read without wrappers.
        collates = loader.collate_fn not in (default_collate, default_convert)
        keyed, batched = collates or not is_deterministic(loader.dataset), loader.batch_sampler is not None
        self._sampler = SeededSampler(
            index_sampler(loader), batched=batched, keyed=keyed, numbered=bool(dataset_hooks), shard=shard
        )
        dataset: Any = SeededDataset(loader.dataset, seed, for_collate=collates) if keyed else loader.dataset
        self._seeded_loader = clone_loader(
            loader,
            self._sampler,
            dataset=HookedDataset(dataset, dataset_hooks) if dataset_hooks else dataset,
            collate_fn=SeededCollate(loader.collate_fn) if collates else loader.collate_fn,
            generator=self._generator,
            worker_init_fn=WorkerInit(loader.worker_init_fn),
        )

    def batches(self, epoch: int, skip: int, iteration: int = 0) -> Iterator[Any]:
        seed = derive_seed(self._seed, epoch)
        # Before the order is sampled: the length and the order of a sampler may depend on the epoch.
        set_epoch(self._loader, epoch)
        self.length = self._sampler.sample_order(epoch, skip, seed, iteration)
        # DataLoader draws the base seed of its workers from this generator, and would otherwise advance the global RNG.
        self._generator.manual_seed(seed)
        return iter_loader(self._seeded_loader)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing: epoch and position determine the batches."""


class StatefulLoader:
    """Loader that saves its own position, such as torchdata's StatefulDataLoader."""

    exact = True

    def __init__(self, loader: Any, dataset_hooks: Sequence[DatasetHook] = ()) -> None:
        self._loader, self._dataset_hooks = loader, dataset_hooks
        self.length = loader_length(loader)
        self._in_epoch = False  # whether the loader is positioned in an epoch that it has not finished
        self._restored_state: Any = None

    def batches(self, epoch: int, skip: int, iteration: int = 0) -> Iterator[Any]:
        if not self._dataset_hooks:
            return self._iter_batches(epoch, skip)
        return apply_dataset_hooks(
            self._iter_batches(epoch, skip), get_dataset(self._loader), self._dataset_hooks, epoch, iteration
        )

    def _iter_batches(self, epoch: int, skip: int) -> Iterator[Any]:
        restored, self._restored_state = self._restored_state, None
        set_epoch(self._loader, epoch)
        if restored is None:
            return self._track_epoch(islice(iter_loader(self._loader), skip, None))
        self._loader.load_state_dict(restored)
        # The saved position is in an epoch that the run ended early. The first iterator after `load_state_dict`
        # continues that epoch, so it is created and discarded.
        if self._in_epoch and not skip:
            self._recreate_iterator()
            set_epoch(self._loader, epoch)
        if not skip:
            return self._track_epoch(iter_loader(self._loader))
        batches = self._track_epoch(self._recreate_iterator())
        # Some loaders start the next epoch if the saved position is the end of an epoch.
        return islice(batches, 0) if skip == self.length else batches

    def _recreate_iterator(self) -> Iterator[Any]:
        """Recreate an iterator that the uninterrupted run has created already, without advancing the RNGs again."""
        with isolate_rng():
            return iter_loader(self._loader)

    def _track_epoch(self, batches: Iterator[Any]) -> Iterator[Any]:
        self._in_epoch = True
        yield from batches
        self._in_epoch = False

    def state_dict(self) -> dict[str, Any]:
        # A restored state that has not been used yet: the loader itself is still at its start.
        if self._restored_state is not None:
            return {"loader": self._restored_state, "inside": self._in_epoch}
        return {"loader": self._loader.state_dict(), "inside": self._in_epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._restored_state, self._in_epoch = state.get("loader"), state.get("inside", False)


class ReplayLoader:
    """Any other iterable, whose position is reached by reading the batches before it."""

    exact = False

    def __init__(self, loader: Iterable[Any], dataset_hooks: Sequence[DatasetHook] = ()) -> None:
        self._loader, self._dataset_hooks = loader, dataset_hooks
        self.length = loader_length(loader)
        self._epoch_start_rng: dict[str, Any] | None = None  # RNG states at the start of the epoch

    def batches(self, epoch: int, skip: int, iteration: int = 0) -> Iterator[Any]:
        if skip and self._epoch_start_rng is not None:
            return self._replay(epoch, skip, iteration, self._epoch_start_rng)
        self._epoch_start_rng = get_rng_state()
        return islice(self._start_epoch(epoch, iteration - skip), skip, None)

    def _replay(self, epoch: int, skip: int, iteration: int, rng_state: dict[str, Any]) -> Iterator[Any]:
        # Batches are read with the RNG states of the start of the epoch, so that the loader draws the same order.
        # The states of the checkpoint are restored afterwards.
        with isolate_rng():
            set_rng_state(rng_state)
            batches = self._start_epoch(epoch, iteration - skip)
            for _ in islice(batches, skip):
                pass
        return batches

    def _start_epoch(self, epoch: int, first: int) -> Iterator[Any]:
        """Return an iterator over all batches of the epoch; `first` is the iteration of the first batch."""
        set_epoch(self._loader, epoch)
        batches = iter_loader(self._loader)
        if not self._dataset_hooks:
            return batches
        return apply_dataset_hooks(batches, get_dataset(self._loader), self._dataset_hooks, epoch, first)

    def state_dict(self) -> dict[str, Any]:
        return {} if self._epoch_start_rng is None else {"epoch_began": self._epoch_start_rng}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._epoch_start_rng = state.get("epoch_began")


class WorkerEpochHook:
    """Dataset hook that calls `set_epoch` of the datasets in a persistent worker, once per epoch.

    A persistent worker keeps its copy of the datasets, so calls in the main process do not reach it.
    """

    def __init__(self) -> None:
        self._last_epoch: int | None = None

    def __call__(self, dataset: Any, epoch: int, iteration: int) -> None:
        if epoch != self._last_epoch:
            self._last_epoch = epoch
            for nested in epoch_aware_datasets(dataset):
                nested.set_epoch(epoch)
