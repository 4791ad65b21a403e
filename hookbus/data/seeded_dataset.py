"""Datasets and collate functions whose randomness is a function of seed and position.

The augmentation of a sample depends on (seed, epoch, index). Changes that hooks make to the dataset depend on (epoch,
iteration) and are applied in the process that reads the samples.

`hookbus.data.resumable_loader` builds its loaders from these classes; they do not depend on a run. They cover the
global RNGs of Python, NumPy and torch. A dataset that draws from its own generator is not covered.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from itertools import count
from typing import Any, NamedTuple

from torch.utils.data import Dataset, Subset, get_worker_info

from hookbus.data.rng import derive_seed, isolate_rng, seed_rng

Key = tuple[int, Any]
"""Pair (pass, index) of a sample; the number of the pass is the epoch, unless an epoch has several passes."""

DatasetHook = Callable[[Any, int, int], object]
"""Function `(dataset, epoch, iteration)` that changes a dataset before the samples of an iteration are read.

Epochs and iterations are counted from 0.
"""


class SeededBatch(NamedTuple):
    """Samples for the collate function, and the seed of its random numbers."""

    samples: Any
    seed: int


class SeededDataset(Dataset[Any]):
    """Dataset whose samples draw random numbers that depend on seed, epoch and index only.

    Args:
        dataset: The dataset; its samples may draw from the global RNGs of Python, NumPy and torch.
        seed: Seed of the run.
        for_collate: Whether the samples are passed to `collate_seeded`.
    """

    def __init__(self, dataset: Any, seed: int, *, for_collate: bool) -> None:
        self.dataset = dataset
        self._seed, self._for_collate = seed, for_collate

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, key: Key) -> Any:
        with _isolate_rng_in_main_process():
            return self._to_output(self._load_sample(key), key)

    def __getitems__(self, keys: list[Key]) -> Any:
        with _isolate_rng_in_main_process():
            return self._to_output(self._load_samples(keys), keys[0])

    def _load_samples(self, keys: list[Key]) -> list[Any]:
        # A dataset that loads a batch at once can be seeded once per batch only. Subset (torch 2.x) defines
        # `__getitems__` for every dataset, most of which load one sample at a time and can be seeded per sample.
        if hasattr(self.dataset, "__getitems__") and not isinstance(self.dataset, Subset):
            seed_rng(self._get_seed(keys[0]))
            return list(self.dataset.__getitems__([index for _, index in keys]))
        return [self._load_sample(key) for key in keys]

    def _load_sample(self, key: Key) -> Any:
        seed_rng(self._get_seed(key))
        return self.dataset[key[1]]

    def _to_output(self, samples: Any, first: Key) -> Any:
        # A seed derived once more, so that the collate function does not repeat the random numbers of the first sample.
        return SeededBatch(samples, derive_seed(self._get_seed(first), 1)) if self._for_collate else samples

    def _get_seed(self, key: Key) -> int:
        epoch, index = key
        return derive_seed(self._seed, epoch, _to_integer(index))


class HookedDataset(Dataset[Any]):
    """Dataset that calls hooks before the samples of an iteration are read, in the process that reads them.

    Args:
        dataset: The dataset, or a `SeededDataset`. If its keys are `key`, the keys of this dataset are
            `((epoch, iteration), key)`.
        dataset_hooks: Functions called with the user's dataset, the epoch and the iteration.
    """

    def __init__(self, dataset: Any, dataset_hooks: Sequence[DatasetHook]) -> None:
        self.dataset = dataset
        self._dataset_hooks = dataset_hooks

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, key: tuple[tuple[int, int], Any]) -> Any:
        self._call_hooks(*key[0])
        return self.dataset[key[1]]

    def __getitems__(self, keys: list[tuple[tuple[int, int], Any]]) -> Any:
        self._call_hooks(*keys[0][0])
        inner = [key for _, key in keys]
        if hasattr(self.dataset, "__getitems__"):
            return self.dataset.__getitems__(inner)
        return [self.dataset[key] for key in inner]

    def _call_hooks(self, epoch: int, iteration: int) -> None:
        dataset = _unwrap_dataset(self)
        # Workers prefetch: a hook called in the main process would change the dataset for batches already read.
        with _isolate_rng_in_main_process():
            for dataset_hook in self._dataset_hooks:
                dataset_hook(dataset, epoch, iteration)


def apply_dataset_hooks(
    batches: Iterator[Any], dataset: Any, dataset_hooks: Sequence[DatasetHook], epoch: int, iteration: int
) -> Iterator[Any]:
    """Yield batches that are read in this process, and call hooks on the dataset before each of them.

    Args:
        batches: The batches.
        dataset: The dataset from which the batches are read.
        dataset_hooks: Functions called with the dataset, the epoch and the iteration.
        epoch: Index of the epoch.
        iteration: Iteration of the first batch.
    """
    for number in count(iteration):
        for dataset_hook in dataset_hooks:
            dataset_hook(dataset, epoch, number)
        try:
            batch = next(batches)
        except StopIteration:  # raised inside a generator, it would become a RuntimeError (PEP 479)
            return
        yield batch


def collate_seeded(collate: Callable[[Any], Any], batch: SeededBatch) -> Any:
    """Collate the samples of a batch; the user's function may draw random numbers, for example for mixup."""
    with _isolate_rng_in_main_process():
        seed_rng(batch.seed)
        return collate(batch.samples)


def init_dataset_worker(user: Callable[[int], None] | None, worker: int) -> None:
    """Call the user's `worker_init_fn`, if there is one, with the user's own dataset in `get_worker_info()`."""
    info = get_worker_info()
    if info is not None:
        # WorkerInfo is immutable (torch 2.x). The worker reads from its own reference to the wrapped dataset.
        object.__setattr__(info, "dataset", _unwrap_dataset(info.dataset))
    if user is not None:
        user(worker)


def _unwrap_dataset(dataset: Any) -> Any:
    """Return the user's dataset inside the wrappers of this module."""
    while isinstance(dataset, (HookedDataset, SeededDataset)):
        dataset = dataset.dataset
    return dataset


def _to_integer(index: Any) -> int:
    """Return an integer that is equal for equal indices in every process."""
    try:
        return operator.index(index)
    except TypeError:
        # Not `hash`: string hashes differ between processes unless PYTHONHASHSEED is set.
        return int.from_bytes(hashlib.blake2b(repr(index).encode(), digest_size=8).digest())


def _isolate_rng_in_main_process() -> Any:
    """Return a context manager that preserves the RNG states of the training; workers have their own."""
    return isolate_rng() if get_worker_info() is None else nullcontext()
