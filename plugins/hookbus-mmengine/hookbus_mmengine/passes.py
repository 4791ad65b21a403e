"""Passes over the training data: with which random numbers they begin, so that a resumed training repeats their order.

MMEngine does not save them. In a new process without a seed in `randomness`, it would draw another order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from mmengine.runner import loops

from hookbus.data import get_rng_state, get_sampler_state, set_sampler_state
from hookbus_mmengine.seeds import get_seeds, reset_samplers, set_seeds


class Passes:
    """Passes over a loader, of which the current one can be repeated after a resume.

    Args:
        loader: Training loader.

    Attributes:
        count: Number of passes that have begun in this process; an iteration-based loop reads earlier ones again.
    """

    def __init__(self, loader: Any) -> None:
        self.count = 0
        self._loader = loader
        self._start: Any = None  # RNG states at the beginning of the current pass
        self._repeated: tuple[int, Any] = (-1, None)  # index of a pass in this training, and with what it begins

    def begin(self) -> None:
        """Begin a pass: record the RNG states from which its order is drawn, or set those of the checkpoint."""
        index, start = self._repeated
        if index == self.count:
            set_sampler_state(self._loader, start)
            self._repeated = (-1, None)
        self._start = get_sampler_state(self._loader)
        self.count += 1

    def state_dict(self) -> dict[str, Any]:
        """Return what determines the order of the current pass and of the passes after it."""
        _, generators = get_sampler_state(self._loader)
        return {
            "count": self.count,
            "start": self._start,
            "generators": generators,
            "seeds": get_seeds(self._loader),
        }

    def is_like(self, state: Mapping[str, Any]) -> bool:
        """Return whether the current pass has begun as that of a checkpoint.

        Args:
            state: What `state_dict` has returned.
        """
        return get_seeds(self._loader) == state["seeds"] and is_equal(self._start, state["start"])

    def continue_after(self, state: Mapping[str, Any]) -> None:
        """Begin the next pass as the training of a checkpoint, which was between two passes, would have begun it.

        Args:
            state: What `state_dict` has returned.
        """
        set_seeds(self._loader, state["seeds"])
        set_sampler_state(self._loader, (get_rng_state(), state["generators"]))

    def repeat(self, state: Mapping[str, Any], index: int) -> None:
        """Begin a pass of this training as that which a checkpoint has interrupted.

        Args:
            state: What `state_dict` has returned.
            index: Number of passes of this training before it.
        """
        set_seeds(self._loader, state["seeds"])
        self._repeated = (index, state["start"])


class PassIterator(loops._InfiniteDataloaderIterator):  # type: ignore[misc]
    """Iterator of an iteration-based loop, whose passes are observed.

    Args:
        dataloader: Training loader.

    Attributes:
        passes: The passes. The first one has begun if the loader has workers, whose order DataLoader draws now;
            otherwise it draws the order when the first batch is read.
    """

    def __init__(self, dataloader: Any) -> None:
        self.passes = Passes(dataloader)
        if getattr(dataloader, "num_workers", 0):
            self.passes.begin()
        super().__init__(dataloader)
        self._dataloader = PassLoader(dataloader, self.passes)


class PassLoader:
    """Loader of an iteration-based loop, which is iterated at the beginning of each pass after the first one.

    Args:
        loader: Training loader.
        passes: The passes.
    """

    def __init__(self, loader: Any, passes: Passes) -> None:
        self._loader, self._passes = loader, passes

    def __iter__(self) -> Iterator[Any]:
        self._passes.begin()
        return iter(self._loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def observe_passes() -> None:
    """Let MMEngine build iteration-based loops with a `PassIterator`, in this process.

    The loop is built before MMEngine calls the first hook, so that it cannot be exchanged for a single Runner.
    """
    loops._InfiniteDataloaderIterator = PassIterator


def get_passes(loop: Any) -> Passes:
    """Return the passes of a loop.

    Args:
        loop: An `EpochBasedTrainLoop` or `IterBasedTrainLoop`.
    """
    iterator = getattr(loop, "dataloader_iterator", None)
    return iterator.passes if isinstance(iterator, PassIterator) else Passes(loop.dataloader)


def repeat_pass(loop: Any, passes: Passes, state: Mapping[str, Any]) -> Passes:
    """Let an iteration-based loop read the passes up to that which a checkpoint has interrupted, in its order.

    Args:
        loop: The loop.
        passes: Its passes.
        state: What `Passes.state_dict` has returned.

    Returns:
        The passes that the loop reads from now on.
    """
    # The order that workers read has been drawn, by other random numbers unless a seed is set.
    is_invalid = passes.count == state["count"] and not passes.is_like(state)
    passes.repeat(state, state["count"] - 1)
    if not is_invalid:
        return passes
    loader = loop.dataloader
    reset_samplers(loader)
    set_sampler_state(loader, state["start"])
    loader._iterator = None  # persistent workers, which would start without drawing a random number
    loop.dataloader_iterator = PassIterator(loader)
    return get_passes(loop)


def is_equal(first: Any, second: Any) -> bool:
    """Return whether two RNG states are equal."""
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second)
    if isinstance(first, Mapping):
        return first.keys() == second.keys() and all(is_equal(value, second[name]) for name, value in first.items())
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(is_equal, first, second))
    return bool(first == second)


def start_workers(loader: Any) -> None:
    """Start the workers that a loader keeps between its passes, as they are in the training that is continued.

    The first pass would start them, and draw a random number for it that the continued training has not drawn.

    Args:
        loader: A loader of which a pass was complete before the checkpoint was saved.
    """
    if getattr(loader, "num_workers", 0) and loader.persistent_workers:
        state = get_sampler_state(loader)
        iter(loader)
        set_sampler_state(loader, state)
