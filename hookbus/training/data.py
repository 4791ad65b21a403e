"""Batches in an order that can be taken up again.

The order of the samples is a function of (seed, epoch), and what is random about a sample a function of (seed, epoch,
index). So a resumed run stands at its batch at once, whatever the number of workers, and reads what the uninterrupted
run would have read. Nothing of a generator's state has to be kept for that.

* A map-style `DataLoader` is rebuilt with the same arguments around a data set that seeds each sample: exact.
* A loader with `state_dict` is asked for its place: as exact as it is.
* Anything else is read again up to the place, and the run says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import torch
from torch.utils.data import (
    DataLoader,
    default_collate,
    default_convert,
)

from hookbus.errors import LoopError
from hookbus.training.loaders import (
    can_be_divided,
    can_be_rebuilt,
    dataset_of,
    epoch_listeners,
    is_deterministic,
    length_of,
    rebuilt,
    set_epoch,
    source_of,
)
from hookbus.training.rng import get_rng_state, mix, preserved_rng, set_rng_state
from hookbus.training.seeding import (
    Plan,
    Preparation,
    PreparedDataset,
    SeededCollate,
    SeededDataset,
    WorkerStart,
    prepared,
)
from hookbus.training.train_shard import Part
from hookbus.training.workers import read

__all__ = ["Feed", "Splits", "feed_of"]


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
        self._generator = torch.Generator()
        part = part if can_be_divided(loader) else None
        self.length = length_of(loader, part)
        if loader.persistent_workers and epoch_listeners(loader.dataset):
            preparations = [TellsEpoch(), *preparations]
        collates = loader.collate_fn not in (default_collate, default_convert)
        keyed, batched = collates or not is_deterministic(loader.dataset), loader.batch_sampler is not None
        self._plan = Plan(source_of(loader), batched=batched, keyed=keyed, numbered=bool(preparations), part=part)
        dataset: Any = SeededDataset(loader.dataset, seed, for_collate=collates) if keyed else loader.dataset
        self._rebuilt = rebuilt(
            loader,
            self._plan,
            dataset=PreparedDataset(dataset, preparations) if preparations else dataset,
            collate_fn=SeededCollate(loader.collate_fn) if collates else loader.collate_fn,
            generator=self._generator,
            worker_init_fn=WorkerStart(loader.worker_init_fn),
        )

    def batches(self, epoch: int, skip: int, iteration: int = 0) -> Iterator[Any]:
        seed = mix(self._seed, epoch)
        set_epoch(self._loader, epoch)
        self.length = self._plan.draw(epoch, skip, seed, iteration)
        self._generator.manual_seed(seed)
        return read(self._rebuilt)

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
        return prepared(self._batches(epoch, skip), dataset_of(self._loader), self._preparations, epoch, iteration)

    def _batches(self, epoch: int, skip: int) -> Iterator[Any]:
        restored, self._restored = self._restored, None
        set_epoch(self._loader, epoch)
        if restored is None:
            return self._followed(islice(read(self._loader), skip, None))
        self._loader.load_state_dict(restored)
        if self._inside and not skip:  # it stands in an epoch that was left early: that one is over
            self._begun_again()
            set_epoch(self._loader, epoch)
        if not skip:
            return self._followed(read(self._loader))
        batches = self._followed(self._begun_again())
        return islice(batches, 0) if skip == self.length else batches  # some begin anew where all was read

    def _begun_again(self) -> Iterator[Any]:
        """An iterator that the uninterrupted run had already: it must not draw from the training's streams again."""
        with preserved_rng():
            return read(self._loader)

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
        set_epoch(self._loader, epoch)
        batches = read(self._loader)
        if not self._preparations:
            return batches
        return prepared(batches, dataset_of(self._loader), self._preparations, epoch, first)

    def state_dict(self) -> dict[str, Any]:
        return {} if self._epoch_began is None else {"epoch_began": self._epoch_began}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._epoch_began = state.get("epoch_began")


class TellsEpoch:
    """Tells data sets their epoch in a worker that stays: its copies there hear of nothing that happens here."""

    def __init__(self) -> None:
        self._told: int | None = None

    def __call__(self, dataset: Any, epoch: int, iteration: int) -> None:
        if epoch != self._told:
            self._told = epoch
            for each in epoch_listeners(dataset):
                each.set_epoch(epoch)
