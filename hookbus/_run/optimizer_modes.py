"""Optimizers with modes, such as the schedule-free ones, which train other weights than those to evaluate.

Such an optimizer has the methods `train` and `eval`, which exchange the weights in the model. It steps in training mode
only; validations and checkpoints use the weights of evaluation mode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from itertools import chain
from typing import TYPE_CHECKING, Any

from hookbus.distributed.unwrap import unwrap_optimizer

if TYPE_CHECKING:
    from torch import Tensor


class OptimizerModes:
    """Switch the optimizers of a run that have modes.

    Args:
        optimizers: Function that returns the optimizers of the run by name.
    """

    def __init__(self, optimizers: Callable[[], Mapping[str, Any]]) -> None:
        self._get_optimizers = optimizers
        self._active: _EvalMode | None = None

    def begin_training(self) -> None:
        """Switch to training mode."""
        for optimizer in self._find().values():
            optimizer.train()

    def end_training(self) -> None:
        """Switch to evaluation mode, without a way back to the exact weights of training mode."""
        for optimizer in self._find().values():
            optimizer.eval()

    def evaluating(self, wait: Callable[[], object]) -> AbstractContextManager[object]:
        """Context manager in evaluation mode; on exit, mode and weights are restored bit-exactly. Reentrant.

        Args:
            wait: Function that is called before weights are exchanged.
        """
        return _EvalMode(self, [optimizer for optimizer in self._find().values() if _is_training(optimizer)], wait)

    def collect_training_weights(self) -> dict[str, dict[int, Tensor]]:
        """Return the weights of training mode inside `evaluating`, by name of the optimizer and index.

        Optimizers that were not in training mode are omitted.
        """
        weights = {} if self._active is None else self._active.weights
        named = {name: weights.get(id(optimizer)) for name, optimizer in self._find().items()}
        return {name: dict(enumerate(values)) for name, values in named.items() if values is not None}

    def load_training_weights(self, name: str, weights: Mapping[int, Tensor]) -> None:
        """Restore the weights of training mode after the weights and the state of evaluation mode were loaded.

        Args:
            name: Name of the optimizer.
            weights: Weights that `collect_training_weights` returned for it.
        """
        optimizer = self._find().get(name)
        if weights and optimizer is not None:
            optimizer.train()
            _copy_into(_get_parameters(optimizer), [weights[index] for index in sorted(weights)])

    def _find(self) -> dict[str, Any]:
        """Return the optimizers with modes by name."""
        inner = {name: unwrap_optimizer(optimizer) for name, optimizer in self._get_optimizers().items()}
        return {name: optimizer for name, optimizer in inner.items() if _has_modes(optimizer)}


class _EvalMode:
    """Context manager in which optimizers are in evaluation mode.

    Attributes:
        weights: Weights of training mode, by the ID of the optimizer.
    """

    def __init__(self, modes: OptimizerModes, optimizers: list[Any], wait: Callable[[], object]) -> None:
        self._modes, self._optimizers, self._wait = modes, optimizers, wait
        self.weights: dict[int, list[Tensor]] = {}

    def __enter__(self) -> None:
        if not self._optimizers:
            return
        self._wait()
        self._modes._active = self
        for optimizer in self._optimizers:
            self.weights[id(optimizer)] = [p.detach().clone() for p in _get_parameters(optimizer)]
            optimizer.eval()

    def __exit__(self, *_: object) -> None:
        if not self._optimizers:
            return
        self._wait()
        self._modes._active = None
        for optimizer in self._optimizers:
            optimizer.train()
            # `train` interpolates, and rounds. Without the copy, the training would depend on when it was validated.
            _copy_into(_get_parameters(optimizer), self.weights[id(optimizer)])


def _has_modes(optimizer: Any) -> bool:
    switches = callable(getattr(optimizer, "train", None)) and callable(getattr(optimizer, "eval", None))
    return switches and hasattr(optimizer, "param_groups")  # modules have the methods as well


def _is_training(optimizer: Any) -> bool:
    """Return whether an optimizer is in training mode, as the `train_mode` of the optimizer or of a group states."""
    default = getattr(optimizer, "train_mode", True)
    return any(group.get("train_mode", default) for group in optimizer.param_groups)


def _get_parameters(optimizer: Any) -> list[Tensor]:
    return list(chain.from_iterable(group["params"] for group in optimizer.param_groups))


def _copy_into(parameters: list[Tensor], values: list[Tensor]) -> None:
    import torch  # `hookbus._run.run` imports this module, and importing it must not import torch

    with torch.no_grad():
        for parameter, value in zip(parameters, values, strict=True):
            parameter.copy_(value)
