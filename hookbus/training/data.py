"""Batches in an order that can be taken up again.

The order of the samples is a function of (seed, epoch), and what is random about a sample a function of (seed, epoch,
index). So a resumed run stands at its batch at once, whatever the number of workers, and reads what the uninterrupted
run would have read. Nothing of a generator's state has to be kept for that.

* A map-style `DataLoader` is rebuilt with the same arguments around a data set that seeds each sample: exact.
* A loader with `state_dict` is asked for its place: as exact as it is.
* Anything else is read again up to the place, and the run says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import torch
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    IterableDataset,
    Subset,
    TensorDataset,
    default_collate,
    default_convert,
)

from hookbus.errors import LoopError
from hookbus.training.dividing import Part
from hookbus.training.rng import get_rng_state, preserved_rng, set_rng_state
from hookbus.training.seeding import (
    Plan,
    Preparation,
    PreparedDataset,
    SeededCollate,
    SeededDataset,
    WorkerStart,
    mix,
    prepared,
)

__all__ = [
    "Feed",
    "Splits",
    "can_be_divided",
    "can_be_rebuilt",
    "datasets_in",
    "feed_of",
    "length_of",
    "rebuilt",
    "source_of",
]


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

    def batches(self, epoch: int, skip: int, iteration: int = 0) -> Iterator[Any]:
        """The batches of an epoch, those before `skip` left out; `iteration` is the index of the first one given."""

    def state_dict(self) -> dict[str, Any]:
        """What has to be kept besides epoch and place."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""


def feed_of(
    loader: Iterable[Any], seed: int, preparations: Sequence[Preparation] = (), part: Part | None = None
) -> Feed:
    """The best way to read a loader.

    Args:
        loader: a DataLoader, or any iterable that can be iterated once per epoch.
        seed: decides order and augmentation, together with the epoch.
        preparations: what is done to its data set before the samples of each iteration are read.
        part: which batches are this process's; None for all. A loader that is no map-style DataLoader, and one whose
            sampler knows of processes (it has `num_replicas`), gives each process a part by itself.

    Raises:
        LoopError: there are preparations, and they cannot reach the workers of this loader.
    """
    keeps_place = hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")
    if not keeps_place and can_be_rebuilt(loader):
        return SeededFeed(loader, seed, preparations, part)  # type: ignore[arg-type]
    workers: int = getattr(loader, "num_workers", 0)
    if preparations and workers:
        raise LoopError(
            f"Hooks change the training data while it is read, and cannot reach the workers of this "
            f"{type(loader).__name__}: give a DataLoader of a map-style data set, or num_workers=0."
        )
    return StatefulFeed(loader, preparations) if keeps_place else ReplayFeed(loader, preparations)


def datasets_in(dataset: Any) -> list[Any]:
    """A data set and those inside it, outermost first: in `dataset` as of Subset, in `datasets` as of ConcatDataset.

    Args:
        dataset: a data set, or a loader of one.
    """
    one, several = getattr(dataset, "dataset", None), getattr(dataset, "datasets", ())
    inner = [*([] if one is None else [one]), *(several if isinstance(several, (list, tuple)) else [])]
    return [dataset, *(found for each in inner for found in datasets_in(each))]


def length_of(loader: Any, part: Part | None = None) -> int | None:
    """The number of batches of a loader; None where it does not know.

    Args:
        loader: the loader.
        part: which of them are this process's; None for all.
    """
    try:
        length = len(loader)
    except (TypeError, NotImplementedError):
        return None
    return part.length(source_of(loader), length) if part is not None and can_be_divided(loader) else length


def rebuilt(
    loader: DataLoader[Any],
    order: Any,
    *,
    dataset: Any,
    collate_fn: Any,
    generator: torch.Generator | None,
    worker_init_fn: Callable[[int], None] | None,
    persistent_workers: bool,
) -> DataLoader[Any]:
    """A DataLoader with the same arguments, but for those that are given.

    Args:
        loader: the one that is followed.
        order: takes the place of its batch sampler, or of its sampler where it makes no batches.
        dataset, collate_fn, generator: of the new one.
        worker_init_fn, persistent_workers: of the new one, if it has workers.
    """
    arguments: dict[str, Any] = (
        {"batch_size": None, "sampler": order} if loader.batch_sampler is None else {"batch_sampler": order}
    )
    if loader.num_workers:
        arguments |= {
            "multiprocessing_context": loader.multiprocessing_context,
            "prefetch_factor": loader.prefetch_factor,
            "persistent_workers": persistent_workers,
            "timeout": loader.timeout,
            "worker_init_fn": worker_init_fn,
        }
    return DataLoader(
        dataset,
        num_workers=loader.num_workers,
        collate_fn=collate_fn,
        pin_memory=loader.pin_memory,
        generator=generator,
        **arguments,
    )


def can_be_divided(loader: Any) -> bool:
    """Whether a loader can be read in parts by several processes, and does not do so by itself."""
    if hasattr(loader, "state_dict") or not can_be_rebuilt(loader):
        return False
    samplers = (source_of(loader), getattr(source_of(loader), "sampler", None))
    return not any(hasattr(each, "num_replicas") for each in samplers)


class SeededFeed:
    """A map-style DataLoader, rebuilt so that order and augmentation follow from seed and epoch."""

    exact = True

    def __init__(
        self,
        loader: DataLoader[Any],
        seed: int,
        preparations: Sequence[Preparation] = (),
        part: Part | None = None,
    ) -> None:
        self._loader, self._seed = loader, seed
        part = part if can_be_divided(loader) else None
        if loader.persistent_workers and hasattr(loader.dataset, "set_epoch"):
            preparations = [TellsEpoch(), *preparations]
        self.length = length_of(loader, part)
        self._generator = torch.Generator()
        collates = loader.collate_fn not in (default_collate, default_convert)
        keyed = collates or not _is_deterministic(loader.dataset)
        batched = loader.batch_sampler is not None
        self._plan = Plan(source_of(loader), batched=batched, keyed=keyed, numbered=bool(preparations), part=part)
        dataset: Any = SeededDataset(loader.dataset, seed, for_collate=collates) if keyed else loader.dataset
        dataset = PreparedDataset(dataset, preparations) if preparations else dataset
        self._rebuilt = rebuilt(
            loader,
            self._plan,
            dataset=dataset,
            collate_fn=SeededCollate(loader.collate_fn) if collates else loader.collate_fn,
            generator=self._generator,
            worker_init_fn=WorkerStart(loader.worker_init_fn),
            persistent_workers=loader.persistent_workers,
        )

    def batches(self, epoch: int, skip: int, iteration: int = 0) -> Iterator[Any]:
        seed = mix(self._seed, epoch)
        _set_epoch(self._loader, epoch)
        self.length = self._plan.draw(epoch, skip, seed, iteration)
        self._generator.manual_seed(seed)
        return iter(self._rebuilt)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing: epoch and place are enough."""


class StatefulFeed:
    """A loader that knows its own place, such as torchdata's StatefulDataLoader."""

    exact = True

    def __init__(self, loader: Any, preparations: Sequence[Preparation] = ()) -> None:
        self._loader, self._preparations = loader, preparations
        self.length = length_of(loader)
        self._inside = False  # whether the loader stands in an epoch that it has not ended
        self._restored: Any = None

    def batches(self, epoch: int, skip: int, iteration: int = 0) -> Iterator[Any]:
        if not self._preparations:
            return self._batches(epoch, skip)
        return prepared(self._batches(epoch, skip), _dataset_of(self._loader), self._preparations, epoch, iteration)

    def _batches(self, epoch: int, skip: int) -> Iterator[Any]:
        restored, self._restored = self._restored, None
        _set_epoch(self._loader, epoch)
        if restored is None:
            return self._followed(islice(iter(self._loader), skip, None))
        self._loader.load_state_dict(restored)
        if self._inside and not skip:  # it stands in an epoch that was left early: that one is over
            self._begun_again()
            _set_epoch(self._loader, epoch)
        if not skip:
            return self._followed(iter(self._loader))
        batches = self._followed(self._begun_again())
        return islice(batches, 0) if skip == self.length else batches  # some begin anew where all was read

    def _begun_again(self) -> Iterator[Any]:
        """An iterator that the uninterrupted run had already: it must not draw from the training's streams again."""
        with preserved_rng():
            return iter(self._loader)

    def _followed(self, batches: Iterator[Any]) -> Iterator[Any]:
        self._inside = True
        yield from batches
        self._inside = False

    def state_dict(self) -> dict[str, Any]:
        if self._restored is not None:
            return {"loader": self._restored, "inside": self._inside}
        return {"loader": self._loader.state_dict(), "inside": self._inside}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._restored, self._inside = state.get("loader"), state.get("inside", False)


class ReplayFeed:
    """Any other iterable: the place is found by reading what comes before it."""

    exact = False

    def __init__(self, loader: Iterable[Any], preparations: Sequence[Preparation] = ()) -> None:
        self._loader, self._preparations = loader, preparations
        self.length = length_of(loader)
        self._epoch_began: dict[str, Any] | None = None

    def batches(self, epoch: int, skip: int, iteration: int = 0) -> Iterator[Any]:
        if skip and self._epoch_began is not None:
            return self._replayed(epoch, skip, iteration, self._epoch_began)
        self._epoch_began = get_rng_state()
        return islice(self._begun(epoch, iteration - skip), skip, None)

    def _replayed(self, epoch: int, skip: int, iteration: int, began: dict[str, Any]) -> Iterator[Any]:
        with preserved_rng():
            set_rng_state(began)
            batches = self._begun(epoch, iteration - skip)
            for _ in islice(batches, skip):
                pass
        return batches

    def _begun(self, epoch: int, first: int) -> Iterator[Any]:
        """The whole epoch, whose first batch is for this iteration."""
        _set_epoch(self._loader, epoch)
        batches = iter(self._loader)
        if not self._preparations:
            return batches
        return prepared(batches, _dataset_of(self._loader), self._preparations, epoch, first)

    def state_dict(self) -> dict[str, Any]:
        return {} if self._epoch_began is None else {"epoch_began": self._epoch_began}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._epoch_began = state.get("epoch_began")


def _dataset_of(loader: Any) -> Any:
    """What a loader reads from; the loader itself where it does not tell."""
    return getattr(loader, "dataset", loader)


def source_of(loader: DataLoader[Any]) -> Any:
    """What a DataLoader takes its batches of indices from, or its indices where it makes no batches."""
    return loader.batch_sampler if loader.batch_sampler is not None else loader.sampler


def can_be_rebuilt(loader: object) -> bool:
    """Whether a loader is a map-style DataLoader of known length, which can read its data in another order."""
    if not isinstance(loader, DataLoader) or type(loader).__iter__ is not DataLoader.__iter__:
        return False
    return not isinstance(loader.dataset, IterableDataset) and length_of(source_of(loader)) is not None


def _is_deterministic(dataset: Any) -> bool:
    """Whether a data set surely draws no random numbers, so that its samples need no seed."""
    if isinstance(dataset, Subset):
        return _is_deterministic(dataset.dataset)
    if isinstance(dataset, ConcatDataset):
        return all(map(_is_deterministic, dataset.datasets))
    return type(dataset) in (TensorDataset, list, tuple)


class TellsEpoch:
    """Tells a data set its epoch in a worker that stays: its copy there hears of nothing that happens here."""

    def __init__(self) -> None:
        self._told: int | None = None

    def __call__(self, dataset: Any, epoch: int, iteration: int) -> None:
        if epoch != self._told:
            self._told = epoch
            dataset.set_epoch(epoch)


def _set_epoch(loader: Any, epoch: int) -> None:
    """Tell the epoch to whatever wants to know it: the loader, its data set, its samplers."""
    seen: list[Any] = []
    for path in ((), ("dataset",), ("sampler",), ("batch_sampler",), ("batch_sampler", "sampler")):
        target = loader
        for name in path:
            target = getattr(target, name, None)
        set_epoch = getattr(target, "set_epoch", None)
        if set_epoch is not None and not any(target is each for each in seen):
            seen.append(target)
            set_epoch(epoch)
