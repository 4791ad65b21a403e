"""The weights of a run: raw, averaged, and which of them are in the model right now.

An averaging hook (EMA) registers as the provider. Checkpoints, evaluations and tests reach averaged weights only
through this, so none of them has to know who averages.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

from hookbus.errors import HookError

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["Provider", "Weights", "unwrapped"]

StateDict = dict[str, "Tensor"]


class Provider(Protocol):
    """Someone who averages the weights of a model."""

    def raw(self) -> StateDict | None:
        """The raw weights while averaged ones are in the model; None while the model holds the raw ones."""

    def averaged(self) -> StateDict | None:
        """The averaged weights; None before the first update."""

    def applied(self) -> AbstractContextManager[Any]:
        """A context in which the model holds the averaged weights."""

    def wait(self) -> None:
        """Return once no update is running on another thread."""


class Weights:
    """Access to the weights of a run's model.

    Args:
        model: a function that returns the model, or None where the run has none.
    """

    def __init__(self, model: Callable[[], nn.Module | None]) -> None:
        self._model = model
        self._provider: Provider | None = None

    def provide(self, provider: Provider | None) -> None:
        """Register who averages; None takes it back.

        Raises:
            HookError: there is one already.
        """
        if provider is not None and self._provider is not None and self._provider is not provider:
            raise HookError(f"{type(self._provider).__name__} averages the weights already; one run has one average.")
        self._provider = provider

    def raw(self) -> StateDict:
        """The raw weights, whatever is in the model right now. References, not copies."""
        kept = self._provider.raw() if self._provider else None
        model = self._model()
        return kept if kept is not None else ({} if model is None else unwrapped(model).state_dict())

    def averaged(self) -> StateDict | None:
        """The averaged weights, None where nobody averages."""
        return self._provider.averaged() if self._provider else None

    def applied(self) -> AbstractContextManager[Any]:
        """A context in which the model holds the averaged weights; does nothing where nobody averages."""
        return self._provider.applied() if self._provider else nullcontext()

    def wait(self) -> None:
        """Return once the weights are not being changed by another thread."""
        if self._provider:
            self._provider.wait()


def unwrapped(model: nn.Module) -> nn.Module:
    """The module inside wrappers: `torch.compile`, and modules whose one child is named `module` (DDP and its like)."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and [name for name, _ in model.named_children()] == ["module"]:
            own = [*model.parameters(recurse=False), *model.buffers(recurse=False)]
            inner = None if own else model.module
        if inner is None:
            return model
        model = inner
