"""Contexts around validations and tests: modes of optimizers, averaged weights, and contexts of hooks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any

from hookbus.distributed.fsdp import unsharded

if TYPE_CHECKING:
    from torch import Tensor, nn

    from hookbus._run.weights import Weights


class ValidationContexts:
    """Enter and exit the contexts of a validation.

    Args:
        weights: Weights of the run.
        warn: Function that logs a warning once per run, with a format string and its arguments.
    """

    def __init__(self, weights: Weights, warn: Callable[..., None]) -> None:
        self._weights, self._warn = weights, warn
        self._contexts: list[tuple[Callable[[], AbstractContextManager[Any]], str]] = []
        self._entered = ExitStack()

    def add(self, context: Callable[[], AbstractContextManager[Any]], owner: str) -> None:
        """Add a context of a hook, or of the loop with the owner ""."""
        self._contexts.append((context, owner))

    def release(self, owner: str) -> None:
        """Remove the contexts of a hook. A validation in progress exits them at its end."""
        self._contexts = [entry for entry in self._contexts if entry[1] != owner]

    def enter(self, model: nn.Module | None) -> None:
        """Enter all contexts.

        Args:
            model: Model of the run.
        """
        self._entered.close()  # contexts of a validation that an error ended before `after_val`
        # The modes of optimizers first: the averages are then exchanged with the weights that are evaluated otherwise.
        self._entered.enter_context(self._weights.eval_mode())
        self._entered.enter_context(self._weights.applied())
        for context, owner in self._contexts:
            # A provider may also be registered as a context, but its average is applied once.
            if not self._weights.provides(context):
                self._enter_context_of_hook(context, owner, model)
        # Last: a context may exchange the weights, and the exchanged weights are all-gathered.
        self._entered.enter_context(unsharded(model))

    def exit(self) -> None:
        """Exit all contexts. Idempotent."""
        self._entered.close()

    def _enter_context_of_hook(
        self, context: Callable[[], AbstractContextManager[Any]], owner: str, model: nn.Module | None
    ) -> None:
        """Enter a context of a hook, and warn if it exchanges the weights."""
        before = _compute_norms(model)
        self._entered.enter_context(context())
        if _compute_norms(model) != before:
            self._warn(
                "%s changes the weights for validations in run.around_validation: the scores are those of the changed "
                "weights, but checkpoints and best files contain the unchanged ones. Register averaged weights with "
                "run.weights.provide instead.",
                f"hook {owner!r}" if owner else "the loop",
            )


def _compute_norms(model: nn.Module | None) -> list[str]:
    """Return the norms of the parameters. They are compared as text, because NaN is not equal to itself."""
    if model is None:
        return []
    import torch  # `hookbus._run.run` imports this module, and importing it must not import torch

    local = [_get_local(parameter.detach()) for parameter in model.parameters()]
    dtypes = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    return [repr(norm.item()) for norm in map(torch.linalg.vector_norm, (t for t in local if t.dtype in dtypes))]


def _get_local(tensor: Tensor) -> Tensor:
    """Return the local shard of a sharded tensor, and any other tensor unchanged."""
    to_local = getattr(tensor, "to_local", None)
    return tensor if to_local is None else to_local()
