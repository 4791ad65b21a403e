"""Raw and averaged weights of a run.

An averaging hook (EMA) registers as the provider. Checkpoints, evaluations and tests access averaged weights only
through `Weights`, and are thus independent of the averaging hook.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from hookbus.distributed.unwrap import unwrap_model
from hookbus.errors import HookError

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["AverageProvider", "Weights"]

StateDict = dict[str, "Tensor"]


class AverageProvider(Protocol):
    """Protocol of objects that average the weights of a model."""

    def raw(self) -> StateDict | None:
        """Return the raw weights while the model contains the averaged ones; None otherwise."""

    def averaged(self) -> StateDict | None:
        """Return the averaged weights; None before the first average."""

    def applied(self) -> AbstractContextManager[Any]:
        """Context manager in which the model contains the averaged weights."""

    def wait(self) -> None:
        """Block until no update is running on another thread."""


class Weights:
    """Access to the weights of the model of a run.

    Args:
        model: Function that returns the model, or None if the run has no model.

    Attributes:
        exchanged: Whether training has ended and the model no longer contains the weights at its end.
    """

    def __init__(self, model: Callable[[], nn.Module | None]) -> None:
        self._model = model  # a function, because a later run of the bus may replace the model
        self._provider: AverageProvider | None = None
        self._readers: list[Callable[[], object]] = []
        self._restore: Callable[[], bool] | None = None
        self.exchanged = False

    def provide(self, provider: AverageProvider | None) -> None:
        """Register the provider of averaged weights; None unregisters it.

        Raises:
            HookError: If another provider is registered.
        """
        if provider is not None and self._provider is not None and self._provider is not provider:
            raise HookError(
                f"run.weights.provide: {type(self._provider).__name__} already averages the weights. Use only one "
                "averaging hook per run."
            )
        self._provider = provider

    def raw(self) -> StateDict:
        """Return the raw weights, also while the model contains the averaged ones. References, not copies."""
        raw = self._provider.raw() if self._provider else None
        model = self._model()
        return raw if raw is not None else ({} if model is None else unwrap_model(model).state_dict())

    def averaged(self) -> StateDict | None:
        """Return the averaged weights; None if no hook averages."""
        return self._provider.averaged() if self._provider else None

    def applied(self) -> AbstractContextManager[Any]:
        """Context manager in which the model contains the averaged weights; no effect if no hook averages."""
        self.wait_for_readers()
        return self._provider.applied() if self._provider else nullcontext()

    def wait(self) -> None:
        """Block until no other thread modifies the weights."""
        if self._provider:
            self._provider.wait()

    def add_reader(self, wait: Callable[[], object]) -> Callable[[], None]:
        """Register another thread that may read the weights between optimizer steps. There may be multiple.

        Args:
            wait: Function that blocks until the thread is not reading; called before weights are exchanged.

        Returns:
            A function that unregisters the thread.
        """
        self._readers.append(wait)
        return partial(self._readers.remove, wait)

    def wait_for_readers(self) -> None:
        """Block until no other thread reads the weights. Call it before the weights are exchanged."""
        for wait in self._readers:
            wait()

    def load(self, raw: Mapping[str, Any], averaged: Mapping[str, Tensor] | None) -> None:
        """Copy weights into the model, and into the average if there is one.

        Args:
            raw: State dict of the model.
            averaged: Averaged weights by name; None leaves the average unchanged.

        Raises:
            HookError: If the weights do not match the model, or the model contains the averaged weights.
        """
        model, own = self._model(), self.averaged()
        if model is None or (self._provider and self._provider.raw() is not None):
            raise HookError(
                "run.weights.load: the model contains the averaged weights, or the run has no model. Load weights "
                "outside of validations."
            )
        from hookbus.distributed.sharding import shard_like  # imports torch

        self.wait()
        self.wait_for_readers()
        try:
            unwrap_model(model).load_state_dict(shard_like(raw, model, None))
            if averaged is not None:
                averages = shard_like(averaged, model, None)
                for name, average in (own or {}).items():
                    average.detach().copy_(averages[name])
        except (KeyError, RuntimeError) as error:
            raise HookError(
                f"run.weights.load: the weights do not match the model: {' '.join(str(error).split())}"
            ) from None

    def restore_at_end(self, restore: Callable[[], bool] | None) -> None:
        """Register a function that exchanges the weights after training, when the last checkpoint is saved.

        Args:
            restore: Function that is called after `after_train` and the processing of its requests; returns whether it
                exchanged the weights. None unregisters the function.

        Raises:
            HookError: If another hook has registered a function.
        """
        if restore is not None and self._restore not in (None, restore):
            raise HookError(
                "run.weights.restore_at_end: two hooks would restore weights at the end of training, and only one can. "
                "If both are early stopping, set `restore_best_weights: false` for one of them."
            )
        self._restore, self.exchanged = restore, False

    def finish(self) -> bool:
        """Exchange the weights if a hook has registered it. Called after training, when the last checkpoint is saved.

        Returns:
            Whether the weights were exchanged.
        """
        self.exchanged = self._restore is not None and self._restore()
        return self.exchanged
