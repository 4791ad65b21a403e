"""What of a checkpoint stays as it is until the next update, and whether it did."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from hookbus.model.wrappers import unwrapped
from hookbus.run import Run

__all__ = ["Stable"]


class Stable:
    """Finds what of a checkpoint may be copied while the next forward and backward run, and watches it.

    Training waits for `find`, so it does little. Weights are told from buffers by their names, which are looked up in
    the model only where a checkpoint has other names than the one before. Torch counts how often each tensor was
    changed in place; of the states, which only an update changes, these counts are read on the other thread.
    """

    def __init__(self) -> None:
        self._names: list[str] = []
        self._names_of_weights: list[str] = []
        self._weights: list[Tensor] = []
        self._states: list[dict[Any, Any]] = []
        self._watched: list[tuple[Tensor, int]] = []

    def find(self, checkpoint: dict[str, Any], run: Run) -> list[Tensor | dict[Any, Any]]:
        """Parameters, averages, the optimizer's state, and the random streams, which were made for the checkpoint.

        Returns:
            The tensors, and dicts of them; none where nobody tells of updates.
        """
        self._weights, self._states = [], []
        if run.model is None or run.optimizer is None:
            return []
        found = checkpoint["state_dict"]
        names = list(found)
        if names != self._names:
            named = unwrapped(run.model).named_parameters(remove_duplicate=False)
            self._names, self._names_of_weights = names, [name for name, _ in named if name in found]
        others = (checkpoint.get("ema_state_dict"), checkpoint.get("optimizer", {}).get("state"), checkpoint["rng"])
        self._weights = [found[name] for name in self._names_of_weights]
        self._states = [each for each in others if isinstance(each, dict)]
        return [*self._weights, *self._states]

    def watch_weights(self) -> None:
        """From here on, notice changes in place of the parameters."""
        self._watched = _with_versions(self._weights)

    def watch_states(self) -> None:
        """From here on, notice those of the states as well."""
        self._watched += _with_versions(_tensors(self._states))

    def stayed(self) -> bool:
        """Whether nothing that is watched was changed; then, and otherwise as well, it is let go."""
        watched, self._watched, self._weights, self._states = self._watched, [], [], []
        return all(tensor._version == version for tensor, version in watched)


def _with_versions(tensors: Iterable[Tensor]) -> list[tuple[Tensor, int]]:
    return [(tensor, tensor._version) for tensor in tensors]


def _tensors(values: Iterable[Any]) -> list[Tensor]:
    """The tensors among some values, and in dicts among them."""
    waiting, found = list(values), []
    while waiting:
        each = waiting.pop()
        if isinstance(each, Tensor):
            found.append(each)
        elif isinstance(each, dict):
            waiting += each.values()
    return found
