"""Contexts around validations: modes of optimizers, averaged weights, and contexts of hooks.

Optimizers with modes, such as the schedule-free ones, train other weights than those to evaluate. They have the methods
`train` and `eval`, which exchange the weights in the model. They step in training mode only; validations and
checkpoints use the weights of evaluation mode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any

from hookbus.distributed.fsdp import unsharded
from hookbus.distributed.unwrap import unwrap_optimizer

if TYPE_CHECKING:
    from torch import Tensor, nn

    from hookbus._run.weights import Weights


class OptimizerModes:
    """Switch the optimizers of a run that have modes.

    Args:
        optimizers: Function that returns the optimizers of the run by name.
    """

    def __init__(self, optimizers: Callable[[], Mapping[str, Any]]) -> None:
        self._get_optimizers = optimizers
        # Weights of training mode inside of `evaluating`, by the ID of the optimizer.
        self._weights: dict[int, list[Tensor]] = {}

    def begin_training(self) -> None:
        """Switch to training mode."""
        for optimizer in self._find().values():
            optimizer.train()

    def end_training(self) -> None:
        """Switch to evaluation mode, without a way back to the exact weights of training mode."""
        for optimizer in self._find().values():
            optimizer.eval()

    @contextmanager
    def evaluating(self, wait: Callable[[], object]) -> Iterator[None]:
        """Context manager in evaluation mode; on exit, mode and weights are restored bit-exactly. Reentrant.

        Args:
            wait: Function that is called before weights are exchanged.
        """
        optimizers = [optimizer for optimizer in self._find().values() if _is_training(optimizer)]
        if not optimizers:
            yield
            return
        wait()
        for optimizer in optimizers:
            self._weights[id(optimizer)] = [p.detach().clone() for p in _get_parameters(optimizer)]
            optimizer.eval()
        try:
            yield
        finally:
            wait()
            for optimizer in optimizers:
                optimizer.train()
                # `train` interpolates, and rounds: without the copy, the training would depend on its validations.
                _copy_into(_get_parameters(optimizer), self._weights.pop(id(optimizer)))

    def collect_training_weights(self) -> dict[str, dict[int, Tensor]]:
        """Return the weights of training mode inside `evaluating`, by name of the optimizer and index.

        Optimizers that were not in training mode are omitted.
        """
        named = {name: self._weights.get(id(optimizer)) for name, optimizer in self._find().items()}
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


class ValidationContexts:
    """Enter and exit the contexts of a validation.

    Args:
        weights: Weights of the run.
    """

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._contexts: list[tuple[Callable[[], AbstractContextManager[Any]], str]] = []
        self._entered = ExitStack()

    def add(self, context: Callable[[], AbstractContextManager[Any]], owner: str) -> None:
        """Add a context of a hook, or of the loop with the owner ""."""
        self._contexts.append((context, owner))

    def release(self, owner: str) -> None:
        """Remove the contexts of a hook. A validation in progress exits them at its end."""
        self._contexts = [entry for entry in self._contexts if entry[1] != owner]

    def enter(self, model: nn.Module | None, average: str | None = None) -> None:
        """Enter all contexts.

        Args:
            model: Model of the run.
            average: Name of the hook whose averaged weights to apply. Default: the primary average.
        """
        self._entered.close()  # contexts of a validation that an error ended before `after_val`
        # The modes of optimizers first: the averages are then exchanged with the weights that are evaluated otherwise.
        self._entered.enter_context(self._weights.eval_mode())
        self._entered.enter_context(self._weights.applied(average))
        # A provider may also be registered as a context, but its average is applied once.
        contexts = [context for context, _ in self._contexts if not self._weights.provides(context)]
        self._weights.evaluated.record(includes_all=self._weights.is_applied, has_contexts=bool(contexts))
        for context in contexts:
            self._entered.enter_context(context())
        # Last: a context may exchange the weights, and the exchanged weights are all-gathered.
        self._entered.enter_context(unsharded(model))

    def exit(self) -> None:
        """Exit all contexts. Idempotent."""
        self._weights.evaluated.discard_record()
        self._entered.close()
