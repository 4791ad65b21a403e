"""Detection of the tensors of a checkpoint that do not change before the next optimizer step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from hookbus import Run
from hookbus.checkpoint import flatten_weights
from hookbus.distributed import named_parameters


class StableTensors:
    """Find the tensors of a checkpoint that may be copied during the next forward and backward, and detect changes.

    Changes in place are detected by the version counters of the tensors (`Tensor._version`).
    """

    def __init__(self) -> None:
        # Cached from the previous checkpoint: `find` blocks the training, and walking the modules takes time.
        self._names: list[str] = []
        self._weight_names: list[str] = []
        self._weights: list[Tensor] = []
        self._states: list[dict[Any, Any]] = []
        self._watched: list[tuple[Tensor, int]] = []

    def find(self, checkpoint: dict[str, Any], run: Run) -> list[Tensor | dict[Any, Any]]:
        """Find parameters, averages, optimizer state, and the RNG state, which was created for the checkpoint.

        Args:
            checkpoint: Content of a checkpoint.
            run: The run.

        Returns:
            Tensors, and dicts of tensors; empty for a run without an optimizer, whose weights may change at any time.
        """
        self._weights, self._states = [], []
        if run.model is None or run.optimizer is None:
            return []
        state_dict = flatten_weights(checkpoint["state_dict"])
        names = list(state_dict)
        if names != self._names:
            # Buffers are excluded: a forward changes them.
            named = named_parameters(run.model, remove_duplicate=False)
            self._names, self._weight_names = names, [name for name, _ in named if name in state_dict]
        optimizer = checkpoint.get("optimizer", {})
        parts = optimizer.values() if isinstance(run.optimizer, Mapping) else [optimizer]
        states = [part.get("state") for part in parts]
        others = (checkpoint.get("ema_state_dict"), *states, checkpoint["rng"])
        self._weights = [state_dict[name] for name in self._weight_names]
        self._states = [state for state in others if isinstance(state, dict)]
        return [*self._weights, *self._states]

    def watch_weights(self) -> None:
        """Start to detect changes in place of the parameters."""
        self._watched = _get_versions(self._weights)

    def watch_states(self) -> None:
        """Start to detect changes in place of the states as well; may be called on another thread."""
        self._watched += _get_versions(_collect_tensors(self._states))

    def is_unchanged(self) -> bool:
        """Whether no watched tensor changed. Ends the detection and releases the tensors."""
        watched, self._watched, self._weights, self._states = self._watched, [], [], []
        return all(tensor._version == version for tensor, version in watched)


def _get_versions(tensors: Iterable[Tensor]) -> list[tuple[Tensor, int]]:
    return [(tensor, tensor._version) for tensor in tensors]


def _collect_tensors(values: Iterable[Any]) -> list[Tensor]:
    """Return the tensors among values and in nested dicts."""
    stack, tensors = list(values), []
    while stack:
        value = stack.pop()
        if isinstance(value, Tensor):
            tensors.append(value)
        elif isinstance(value, dict):
            stack += value.values()
    return tensors
