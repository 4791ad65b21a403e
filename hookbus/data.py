"""Batches in an order that can be taken up again.

The order of the samples is a function of (seed, epoch), and what is random about a sample a function of (seed, epoch,
index). So a resumed run stands at its batch at once, whatever the number of workers, and reads what the uninterrupted
run would have read. Nothing of a generator's state has to be kept for that.

* A map-style `DataLoader` is rebuilt with the same arguments around a data set that seeds each sample: exact.
* A loader with `state_dict` is asked for its place: as exact as it is.
* Anything else is read again up to the place, and the run says so.
"""

from __future__ import annotations

import random
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import torch
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    get_worker_info,
)

from hookbus.rng import get_rng_state, preserved_rng, set_rng_state

__all__ = ["Feed", "Splits", "feed_of", "length_of", "mix"]

MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Splits:
    """What a factory of `hookbus.datasets` returns.

    Attributes:
        train, val, test: data sets, or ready loaders; None for a split that there is not.
        input_shape: the shape of one input, without the batch, for models that want to know.
        num_classes: how many classes there are, for models that want to know.
    """

    train: Any
    val: Any = None
    test: Any = None
    input_shape: tuple[int, ...] | None = None
    num_classes: int | None = None


class Feed(Protocol):
    """A loader that can be read from any place of any epoch.

    Attributes:
        exact: whether the place is found without reading what comes before it.
        length: batches per epoch, None where that is not known.
    """

    exact: bool
    length: int | None

    def batches(self, epoch: int, skip: int) -> Iterator[Any]:
        """The batches of an epoch, those before `skip` left out."""

    def state_dict(self) -> dict[str, Any]:
        """What has to be kept besides epoch and place."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""


def feed_of(loader: Iterable[Any], seed: int) -> Feed:
    """The best way to read a loader.

    Args:
        loader: a DataLoader, or any iterable that can be iterated once per epoch.
        seed: decides order and augmentation, together with the epoch.
    """
    if hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict"):
        return StatefulFeed(loader)
    if _can_be_rebuilt(loader):
        return SeededFeed(loader, seed)  # type: ignore[arg-type]
    return ReplayFeed(loader)


def length_of(loader: Any) -> int | None:
    """The number of batches of a loader; None where it does not know."""
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None


def mix(*numbers: int) -> int:
    """One well-spread 63-bit number from several; the same everywhere (splitmix64, Steele et al. 2014)."""
    state = 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) & MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
        state ^= state >> 31
    return state >> 1


class SeededFeed:
    """A map-style DataLoader, rebuilt so that order and augmentation follow from seed and epoch."""

    exact = True

    def __init__(self, loader: DataLoader[Any], seed: int) -> None:
        self._loader, self._seed = loader, seed
        self.length = length_of(loader)
        self._plan = _Plan(loader)
        seeded = not _is_deterministic(loader.dataset)
        dataset: Any = _SeededDataset(loader.dataset, seed) if seeded else loader.dataset
        self._plan.with_epoch = seeded
        self._generator = torch.Generator()
        self._rebuilt = self._rebuild(dataset)

    def _rebuild(self, dataset: Any) -> DataLoader[Any]:
        loader = self._loader
        workers: dict[str, Any] = {}
        if loader.num_workers:
            workers = {
                "multiprocessing_context": loader.multiprocessing_context,
                "prefetch_factor": loader.prefetch_factor,
                "persistent_workers": loader.persistent_workers,
                "timeout": loader.timeout,
                "worker_init_fn": _WorkerStart(loader.worker_init_fn),
            }
        batched = loader.batch_sampler is not None
        return DataLoader(
            dataset,
            **({"batch_sampler": self._plan} if batched else {"batch_size": None, "sampler": self._plan}),
            num_workers=loader.num_workers,
            collate_fn=loader.collate_fn,
            pin_memory=loader.pin_memory,
            generator=self._generator,
            **workers,
        )

    def batches(self, epoch: int, skip: int) -> Iterator[Any]:
        self._generator.manual_seed(mix(self._seed, epoch))
        self._plan.set(epoch, skip, mix(self._seed, epoch))
        return iter(self._rebuilt)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing: epoch and place are enough."""


class StatefulFeed:
    """A loader that knows its own place, such as torchdata's StatefulDataLoader."""

    exact = True

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self.length = length_of(loader)
        self._restored = False

    def batches(self, epoch: int, skip: int) -> Iterator[Any]:
        if self._restored:
            skip = 0
        elif not skip:
            _set_epoch(self._loader, epoch)
        self._restored = False
        return islice(iter(self._loader), skip, None)

    def state_dict(self) -> dict[str, Any]:
        return {"loader": self._loader.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if "loader" in state:
            self._loader.load_state_dict(state["loader"])
            self._restored = True


class ReplayFeed:
    """Any other iterable: the place is found by reading what comes before it."""

    exact = False

    def __init__(self, loader: Iterable[Any]) -> None:
        self._loader = loader
        self.length = length_of(loader)
        self._epoch_began: dict[str, Any] | None = None

    def batches(self, epoch: int, skip: int) -> Iterator[Any]:
        if skip and self._epoch_began is not None:
            return self._replayed(epoch, skip, self._epoch_began)
        self._epoch_began = get_rng_state()
        _set_epoch(self._loader, epoch)
        return islice(iter(self._loader), skip, None)

    def _replayed(self, epoch: int, skip: int, began: dict[str, Any]) -> Iterator[Any]:
        with preserved_rng():
            set_rng_state(began)
            _set_epoch(self._loader, epoch)
            iterator = iter(self._loader)
            for _ in islice(iterator, skip):
                pass
        return iterator

    def state_dict(self) -> dict[str, Any]:
        return {} if self._epoch_began is None else {"epoch_began": self._epoch_began}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._epoch_began = state.get("epoch_began")


class _Plan:
    """A sampler (or batch sampler) that yields what the loader's own would yield, from a place on."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._source: Any = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
        self.with_epoch = True
        self._epoch = 0
        self._steps: list[Any] = []

    def set(self, epoch: int, skip: int, seed: int) -> None:
        """Draw the order of an epoch; the global random streams are left as they were."""
        _set_epoch(self._source, epoch)
        with preserved_rng(), _own_generators(self._source, seed):
            _seed_all(seed)
            self._steps = list(islice(iter(self._source), skip, None))
        self._epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        for step in self._steps:
            if not self.with_epoch:
                yield step
            elif isinstance(step, (list, tuple)):
                yield [(self._epoch, index) for index in step]
            else:
                yield (self._epoch, step)

    def __len__(self) -> int:
        return len(self._steps)


class _SeededDataset(Dataset[Any]):
    """A data set in which the randomness of a sample follows from seed, epoch and index."""

    def __init__(self, dataset: Any, seed: int) -> None:
        self._dataset, self._seed = dataset, seed

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, key: tuple[int, Any]) -> Any:
        return self.__getitems__([key])[0]

    def __getitems__(self, keys: list[tuple[int, Any]]) -> list[Any]:
        with _preserved_in_main_process():
            if hasattr(self._dataset, "__getitems__") and not isinstance(self._dataset, Subset):
                self._seed_sample(keys[0])
                return list(self._dataset.__getitems__([index for _, index in keys]))
            return [self._sample(key) for key in keys]

    def _sample(self, key: tuple[int, Any]) -> Any:
        self._seed_sample(key)
        return self._dataset[key[1]]

    def _seed_sample(self, key: tuple[int, Any]) -> None:
        epoch, index = key
        _seed_all(mix(self._seed, epoch, index if isinstance(index, int) else hash(index)))


class _WorkerStart:
    """Starts a worker: Ctrl-C is the main process's business, then the user's own function."""

    def __init__(self, user: Callable[[int], None] | None) -> None:
        self._user = user

    def __call__(self, worker: int) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if self._user is not None:
            self._user(worker)


def _can_be_rebuilt(loader: object) -> bool:
    if not isinstance(loader, DataLoader) or type(loader).__iter__ is not DataLoader.__iter__:
        return False
    source = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
    return not isinstance(loader.dataset, IterableDataset) and hasattr(source, "__len__")


def _is_deterministic(dataset: Any) -> bool:
    """Whether a data set surely draws no random numbers, so that its samples need no seed."""
    if isinstance(dataset, Subset):
        return _is_deterministic(dataset.dataset)
    if isinstance(dataset, ConcatDataset):
        return all(map(_is_deterministic, dataset.datasets))
    return type(dataset) in (TensorDataset, list, tuple)


def _set_epoch(source: Any, epoch: int) -> None:
    """Tell the epoch to whatever wants to know it: a loader, its samplers."""
    seen: list[Any] = []
    for path in ((), ("sampler",), ("batch_sampler",), ("batch_sampler", "sampler")):
        target = source
        for name in path:
            target = getattr(target, name, None)
        set_epoch = getattr(target, "set_epoch", None)
        if set_epoch is not None and not any(target is each for each in seen):
            seen.append(target)
            set_epoch(epoch)


def _seed_all(seed: int) -> None:
    """Seed the random streams that data sets draw from."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed & 0xFFFFFFFF)


@contextmanager
def _own_generators(source: Any, seed: int) -> Iterator[None]:
    """Give samplers that carry a generator a seeded one, for as long as the order is drawn."""
    both: list[Any] = [source, getattr(source, "sampler", None)]
    samplers = [sampler for sampler in both if getattr(sampler, "generator", None) is not None]
    kept = [sampler.generator for sampler in samplers]
    try:
        for sampler in samplers:
            sampler.generator = torch.Generator().manual_seed(seed)
        yield
    finally:
        for sampler, generator in zip(samplers, kept, strict=True):
            sampler.generator = generator


@contextmanager
def _preserved_in_main_process() -> Iterator[None]:
    """Keep the random streams of the training as they are; a worker's are its own."""
    if get_worker_info() is not None:
        yield
        return
    with preserved_rng():
        yield
