"""What is random about data, made a function of (seed, epoch) for the order and (seed, epoch, index) for a sample.

What hooks change about data is a function of (epoch, iteration) likewise, and is done where the samples are read.

Nothing here knows of runs: these are the parts with which `hookbus.training.data` builds a loader again. They reach
what draws from the random streams of Python, NumPy and torch, and the generators that a sampler carries. A data set
that draws from a generator of its own is not covered.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from itertools import count, islice
from typing import Any, NamedTuple

from torch.utils.data import Dataset, Subset, get_worker_info

from hookbus.training.rng import mix, preserved_rng, seed_streams, seeded_sampler
from hookbus.training.train_shard import Part

__all__ = ["Plan", "Preparation", "PreparedDataset", "SeededCollate", "SeededDataset", "WorkerStart", "prepared"]


Key = tuple[int, Any]
"""(epoch, index) of a sample."""

Preparation = Callable[[Any, int, int], object]
"""`prepare(dataset, epoch, iteration)`: makes a data set ready for the samples of an iteration; indices from 0."""


class Plan:
    """A sampler (or batch sampler) that yields what another one would yield, from a place on.

    An epoch has as many steps as the other one says it has, so one that never ends does no harm.

    Args:
        source: the other one; it knows its length.
        batched: whether it yields batches of indices.
        keyed: whether indices become keys of a `SeededDataset`.
        numbered: whether these become keys of a `PreparedDataset`.
        part: which steps are this process's.
    """

    def __init__(
        self, source: Any, *, batched: bool, keyed: bool, numbered: bool = False, part: Part | None = None
    ) -> None:
        self._source, self._batched, self._keyed, self._numbered = source, batched, keyed, numbered
        self._part = part or Part()
        self._steps: list[Any] = []

    def draw(self, epoch: int, skip: int, seed: int, iteration: int = 0) -> int:
        """Draw the order of an epoch; every random stream is left as it was.

        Args:
            epoch: becomes part of the keys.
            skip: so many steps are left out.
            seed: what the order follows from.
            iteration: of the first step that is not left out; becomes part of numbered keys.

        Returns:
            How many steps the epoch has, those left out included.
        """
        with seeded_sampler(self._source, seed):
            steps = islice(iter(self._source), len(self._source))
            drawn = self._part.of(self._source, [list(step) if self._batched else step for step in steps])
        self._steps = [self._keys(epoch, step) for step in drawn[skip:]]
        if self._numbered:
            self._steps = [self._at((epoch, number), step) for number, step in enumerate(self._steps, iteration)]
        return len(drawn)

    def _keys(self, epoch: int, step: Any) -> Any:
        if not self._keyed:
            return step
        return [(epoch, index) for index in step] if self._batched else (epoch, step)

    def _at(self, moment: tuple[int, int], step: Any) -> Any:
        return [(moment, key) for key in step] if self._batched else (moment, step)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._steps)

    def __len__(self) -> int:
        return len(self._steps)


class Drawn(NamedTuple):
    """Samples on their way to the collating function, and the seed for what is random there."""

    samples: Any
    seed: int


class SeededDataset(Dataset[Any]):
    """A data set in which the randomness of a sample follows from seed, epoch and index.

    Args:
        dataset: the data set; its samples may draw from the random streams of Python, NumPy and torch.
        seed: of the run.
        for_collate: whether a `SeededCollate` takes what comes from here.
    """

    def __init__(self, dataset: Any, seed: int, *, for_collate: bool) -> None:
        self.dataset = dataset
        self._seed, self._for_collate = seed, for_collate

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, key: Key) -> Any:
        with _preserved_in_main_process():
            return self._handed_on(self._sample(key), key)

    def __getitems__(self, keys: list[Key]) -> Any:
        with _preserved_in_main_process():
            return self._handed_on(self._samples(keys), keys[0])

    def _samples(self, keys: list[Key]) -> list[Any]:
        if hasattr(self.dataset, "__getitems__") and not isinstance(self.dataset, Subset):
            seed_streams(self._seed_of(keys[0]))
            return list(self.dataset.__getitems__([index for _, index in keys]))
        return [self._sample(key) for key in keys]

    def _sample(self, key: Key) -> Any:
        seed_streams(self._seed_of(key))
        return self.dataset[key[1]]

    def _handed_on(self, samples: Any, first: Key) -> Any:
        return Drawn(samples, mix(self._seed_of(first), 1)) if self._for_collate else samples

    def _seed_of(self, key: Key) -> int:
        epoch, index = key
        return mix(self._seed, epoch, _number_of(index))


class PreparedDataset(Dataset[Any]):
    """A data set that is made ready for each iteration before its samples are read, in the process that reads them.

    Args:
        dataset: the data set, or a `SeededDataset` around it. Its keys are those of this one's pairs of (epoch,
            iteration) and key.
        preparations: called with the data set itself, the epoch and the iteration.
    """

    def __init__(self, dataset: Any, preparations: Sequence[Preparation]) -> None:
        self.dataset = dataset
        self._preparations = preparations

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, key: tuple[tuple[int, int], Any]) -> Any:
        self._prepare(*key[0])
        return self.dataset[key[1]]

    def __getitems__(self, keys: list[tuple[tuple[int, int], Any]]) -> Any:
        self._prepare(*keys[0][0])
        inner = [key for _, key in keys]
        if hasattr(self.dataset, "__getitems__"):
            return self.dataset.__getitems__(inner)
        return [self.dataset[key] for key in inner]

    def _prepare(self, epoch: int, iteration: int) -> None:
        dataset = _unwrapped(self)
        with _preserved_in_main_process():
            for prepare in self._preparations:
                prepare(dataset, epoch, iteration)


def prepared(
    batches: Iterator[Any], dataset: Any, preparations: Sequence[Preparation], epoch: int, iteration: int
) -> Iterator[Any]:
    """Batches of a loader that reads in this process, whose data set is made ready before each of them is read.

    Args:
        batches: the batches.
        dataset: what is made ready.
        preparations: called with the data set, the epoch and the iteration.
        epoch: the epoch.
        iteration: of the first batch.
    """
    for number in count(iteration):
        for prepare in preparations:
            prepare(dataset, epoch, number)
        try:
            batch = next(batches)
        except StopIteration:
            return
        yield batch


class SeededCollate:
    """A collating function that may draw random numbers, such as one that mixes samples up.

    Args:
        collate: the user's own.
    """

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self._collate = collate

    def __call__(self, drawn: Drawn) -> Any:
        """One batch of the samples."""
        with _preserved_in_main_process():
            seed_streams(drawn.seed)
            return self._collate(drawn.samples)


class WorkerStart:
    """A `worker_init_fn` that calls the one of the user with the user's own dataset in `get_worker_info()`.

    Args:
        user: The user's `worker_init_fn`, or None.
    """

    def __init__(self, user: Callable[[int], None] | None) -> None:
        self._user = user

    def __call__(self, worker: int) -> None:
        """Called in the worker, before it reads anything."""
        info = get_worker_info()
        if info is not None:
            object.__setattr__(info, "dataset", _unwrapped(info.dataset))  # frozen; the reading itself keeps ours
        if self._user is not None:
            self._user(worker)


def _unwrapped(dataset: Any) -> Any:
    """The user's own data set inside ours."""
    while isinstance(dataset, (PreparedDataset, SeededDataset)):
        dataset = dataset.dataset
    return dataset


def _number_of(index: Any) -> int:
    """A whole number that is the same for equal indices in every process."""
    try:
        return operator.index(index)
    except TypeError:
        return int.from_bytes(hashlib.blake2b(repr(index).encode(), digest_size=8).digest())


def _preserved_in_main_process() -> Any:
    """Keep the random streams of the training as they are; a worker's are its own."""
    return preserved_rng() if get_worker_info() is None else nullcontext()
