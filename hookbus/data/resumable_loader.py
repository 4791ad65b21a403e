"""Data loaders that resume at any batch of any epoch.

The order of the samples is a function of (seed, epoch), and the augmentation of a sample a function of (seed, epoch,
index). A resumed run therefore starts at its batch without reading the earlier ones, with any number of workers, and
reads what the uninterrupted run would have read. No generator state is saved.

* A map-style `DataLoader` is copied with a dataset that seeds each sample. The position is exact. Loaders of Accelerate
  and Fabric are copied with such a copy of the DataLoader that they wrap.
* A loader with `state_dict` and `load_state_dict` restores its own position. It is as exact as the loader.
* Any other iterable is read again up to the position, and a warning is logged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hookbus.data.iterated_loaders import ReplayLoader, StatefulLoader, saves_position
from hookbus.data.loaders import get_base_loader
from hookbus.data.seeded_dataset import DatasetHook
from hookbus.data.seeded_loader import SeededLoader
from hookbus.data.seeded_sampler import PassPosition
from hookbus.data.train_shard import TrainShard
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
        length: Number of batches of the current or next pass, or None if it is unknown.
    """

    exact: bool
    length: int | None

    @property
    def concurrent(self) -> bool:
        """Whether several passes may be in progress at once."""

    def batches(self, position: PassPosition, start: Mapping[str, Any] | None = None) -> Iterator[Any]:
        """Return an iterator over the remaining batches of a pass.

        Args:
            position: Position of the first batch.
            start: State returned by `get_start_state()` at the start of the pass; None if it is unknown.
        """

    def get_start_state(self) -> dict[str, Any]:
        """Return the state to save for a pass that is about to start."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the loader itself."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
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
