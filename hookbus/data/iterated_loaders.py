"""Resumable loaders that cannot be copied with another sampler, and are iterated unchanged.

Their position is restored from their own state, or by reading the batches before it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from torch.utils.data import DataLoader

from hookbus.data.loaders import loader_length, set_epoch
from hookbus.data.rng import get_rng_state, get_sampler_state, isolate_rng, set_sampler_state
from hookbus.data.samplers import PassPosition
from hookbus.data.seeded_dataset import DatasetHook, apply_dataset_hooks
from hookbus.data.workers import iter_loader


def saves_position(loader: Any) -> bool:
    """Whether a loader saves its own position, determined by a call of its method `state_dict`.

    A class may define the methods for loaders that do not support them: DataLoaderShard of Accelerate does.
    """
    if not (hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")):
        return False
    try:
        # StatefulDataLoader of torchdata creates its first iterator here, which draws a random number.
        with isolate_rng():
            loader.state_dict()
    except Exception:
        return False
    return True


class ResumableLoader:
    """Loader that can be read from any position of any epoch.

    Args:
        loader: The loader.
        dataset_hooks: Functions called with the dataset before the samples of each iteration are read.

    Attributes:
        exact: Whether the position is reached without reading the batches before it.
        concurrent: Whether several passes may be in progress at once.
        length: Number of batches of the current or next pass, or None if it is unknown.
    """

    exact = True
    concurrent = True

    def __init__(self, loader: Any, dataset_hooks: Sequence[DatasetHook] = ()) -> None:
        self._loader, self._dataset_hooks = loader, dataset_hooks
        self.length = loader_length(loader)

    def batches(self, position: PassPosition, start: Mapping[str, Any] | None = None) -> Iterator[Any]:
        """Return an iterator over the remaining batches of a pass.

        Args:
            position: Position of the first batch.
            start: State returned by `get_start_state()` at the start of the pass; {} or None if it is unknown.
        """
        raise NotImplementedError

    def get_start_state(self) -> dict[str, Any]:
        """Return the state to save for a pass that is about to start."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the loader itself."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state returned by `state_dict()`."""

    def _call_dataset_hooks(self, batches: Iterator[Any], epoch: int, iteration: int) -> Iterator[Any]:
        """Return batches whose dataset is modified before each of them, starting with an iteration."""
        if not self._dataset_hooks:
            return batches
        dataset = getattr(self._loader, "dataset", self._loader)
        return apply_dataset_hooks(batches, dataset, self._dataset_hooks, epoch, iteration)


class StatefulLoader(ResumableLoader):
    """Loader that saves its own position, such as torchdata's StatefulDataLoader."""

    concurrent = False

    def __init__(self, loader: Any, dataset_hooks: Sequence[DatasetHook] = ()) -> None:
        super().__init__(loader, dataset_hooks)
        self._in_epoch = False  # whether the loader is positioned in an epoch that it has not finished
        self._at_end = False  # whether it has yielded the last batch of this epoch
        self._restored_state: Any = None

    def batches(self, position: PassPosition, start: Mapping[str, Any] | None = None) -> Iterator[Any]:
        """Return an iterator over the remaining batches of a pass; `start` is ignored."""
        batches = self._iter_batches(position.epoch, position.skip)
        return self._call_dataset_hooks(batches, position.epoch, position.iteration)

    def _iter_batches(self, epoch: int, skip: int) -> Iterator[Any]:
        restored, self._restored_state = self._restored_state, None
        set_epoch(self._loader, epoch)
        if restored is None:
            return self._track_epoch(islice(iter_loader(self._loader), skip, None), skip)
        self._loader.load_state_dict(restored)
        if skip and skip == self.length:
            # The next pass starts from the restored state if the loader restarts there.
            self._restored_state, self._in_epoch = restored if self._restarts() else None, False
            return iter(())
        if self._in_epoch and not skip:
            self._leave_epoch(restored)
            set_epoch(self._loader, epoch)
        return self._track_epoch(self._recreate_iterator() if skip else iter_loader(self._loader), skip)

    def _leave_epoch(self, restored: Any) -> None:
        """Leave the epoch of the saved position, which the run ended early.

        The first iterator after `load_state_dict` continues that epoch, so it is created and discarded.
        """
        if not self._at_end:
            self._recreate_iterator()
        elif self._restarts():
            self._loader.load_state_dict(restored)

    def _restarts(self) -> bool:
        """Return whether the loader starts the next epoch, because the loaded position is the end of an epoch."""
        with isolate_rng():
            return next(iter_loader(self._loader), self) is not self

    def _recreate_iterator(self) -> Iterator[Any]:
        """Recreate an iterator that the uninterrupted run has created already, without advancing the RNGs again."""
        with isolate_rng():
            return iter_loader(self._loader)

    def _track_epoch(self, batches: Iterator[Any], skip: int) -> Iterator[Any]:
        self._in_epoch = True
        for count, batch in enumerate(batches, skip + 1):
            self._at_end = count == self.length
            yield batch
        self._in_epoch = False

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the loader."""
        flags = {"inside": self._in_epoch, "at_end": self._at_end}
        # A restored state that has not been used yet: the loader itself is still at its start.
        if self._restored_state is not None:
            return {"loader": self._restored_state, **flags}
        return {"loader": self._loader.state_dict(), **flags}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state returned by `state_dict()`."""
        self._restored_state, self._in_epoch = state.get("loader"), state.get("inside", False)
        self._at_end = state.get("at_end", False)


class ReplayLoader(ResumableLoader):
    """Any other iterable, whose position is reached by reading the batches before it."""

    exact = False

    def __init__(self, loader: Iterable[Any], dataset_hooks: Sequence[DatasetHook] = ()) -> None:
        super().__init__(loader, dataset_hooks)
        # Persistent workers serve one iterator at a time.
        self.concurrent = not (isinstance(loader, DataLoader) and loader.persistent_workers)

    def batches(self, position: PassPosition, start: Mapping[str, Any] | None = None) -> Iterator[Any]:
        """Return an iterator over the remaining batches of a pass, see `ResumableLoader.batches`."""
        if not (position.skip and start):
            return islice(self._start_pass(position), position.skip, None)
        # Batches are read with the RNG states of the start of the pass, so that the loader draws the same order. The
        # states of the checkpoint are restored afterwards.
        with isolate_rng():
            set_sampler_state(self._loader, (start["epoch_began"], start.get("generators", [])))
            batches = self._start_pass(position)
            for _ in islice(batches, position.skip):
                pass
        return batches

    def _start_pass(self, position: PassPosition) -> Iterator[Any]:
        """Return an iterator over all batches of a pass."""
        set_epoch(self._loader, position.epoch)
        first = position.iteration - position.skip
        return self._call_dataset_hooks(iter_loader(self._loader), position.epoch, first)

    def get_start_state(self) -> dict[str, Any]:
        """Return the states of the global RNGs and of the generators of the loader, for a replay of the next pass."""
        began, generators = get_sampler_state(self._loader)
        return {"epoch_began": began, "generators": generators}

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the generators of the loader; {} if it has none."""
        generators = get_sampler_state(self._loader)[1]
        return {"generators": generators} if generators else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state returned by `state_dict()`."""
        set_sampler_state(self._loader, (get_rng_state(), state.get("generators", [])))
