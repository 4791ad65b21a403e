"""The weights of a run: raw, averaged, and which of them are in the model right now.

An averaging hook (EMA) registers as the provider. Checkpoints, evaluations and tests reach averaged weights only
through this, so none of them has to know who averages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from hookbus.errors import HookError
from hookbus.model.wrappers import unwrapped

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["Provider", "Weights"]

StateDict = dict[str, "Tensor"]


class Provider(Protocol):
    """Someone who averages the weights of a model."""

    def raw(self) -> StateDict | None:
        """The raw weights while averaged ones are in the model; None while the model holds the raw ones."""

    def averaged(self) -> StateDict | None:
        """The averaged weights; None where there is none yet."""

    def applied(self) -> AbstractContextManager[Any]:
        """A context in which the model holds the averaged weights."""

    def wait(self) -> None:
        """Return once no update is running on another thread."""


class Weights:
    """Access to the weights of a run's model.

    Args:
        model: a function that returns the model, or None where the run has none.

    Attributes:
        exchanged: whether training is over and the weights in the model are no longer those it ended with.
    """

    def __init__(self, model: Callable[[], nn.Module | None]) -> None:
        self._model = model
        self._provider: Provider | None = None
        self._readers: list[Callable[[], object]] = []
        self._put_back: Callable[[], bool] | None = None
        self.exchanged = False

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
        self.wait_for_readers()
        return self._provider.applied() if self._provider else nullcontext()

    def wait(self) -> None:
        """Return once the weights are not being changed by another thread."""
        if self._provider:
            self._provider.wait()

    def read_by(self, wait: Callable[[], object]) -> Callable[[], None]:
        """Say that another thread may be reading the weights between updates. There may be several.

        Args:
            wait: returns once it is done; called before weights are exchanged.

        Returns:
            A function that takes this back.
        """
        self._readers.append(wait)
        return partial(self._readers.remove, wait)

    def wait_for_readers(self) -> None:
        """Return once no other thread reads the weights; called by whoever is about to exchange them."""
        for wait in self._readers:
            wait()

    def load(self, raw: Mapping[str, Any], averaged: Mapping[str, Tensor] | None) -> None:
        """Put other weights into the model, and into the average where there is one. Values are copied.

        Args:
            raw: a state dict of the model.
            averaged: averaged weights by name; None leaves the average as it is.

        Raises:
            HookError: they are not those of this model, or averaged weights are in it right now.
        """
        model, own = self._model(), self.averaged()
        if model is None or (self._provider and self._provider.raw() is not None):
            raise HookError("Weights are put back into a model between validations, and this is not the time.")
        from hookbus.model.layouts import spread_like  # imports torch

        self.wait()
        self.wait_for_readers()
        try:
            unwrapped(model).load_state_dict(spread_like(raw, model, None))
            if averaged is not None:
                averages = spread_like(averaged, model, None)
                for name, average in (own or {}).items():
                    average.detach().copy_(averages[name])
        except (KeyError, RuntimeError) as error:
            raise HookError(f"These are not the weights of this model: {' '.join(str(error).split())}") from None

    def put_back(self, put_back: Callable[[], bool] | None) -> None:
        """Have the weights exchanged when training is over and its files are written; None takes that back.

        Args:
            put_back: called after `after_train` and the settlement that follows it; returns whether it exchanged them.

        Raises:
            HookError: another hook will do so already.
        """
        if put_back is not None and self._put_back not in (None, put_back):
            raise HookError(
                "Two hooks would put other weights into the model when training is over, and only one can. Where both "
                "are early stopping, say restore_best_weights: false for one of them."
            )
        self._put_back, self.exchanged = put_back, False

    def finish(self) -> bool:
        """Training is over and its files are written. Returns whether the weights were exchanged."""
        self.exchanged = self._put_back is not None and self._put_back()
        return self.exchanged
