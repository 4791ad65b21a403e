"""Raw and averaged weights of a run.

An averaging hook (EMA) registers as the provider. Checkpoints, evaluations and tests access averaged weights only
through `Weights`, and are thus independent of the averaging hook.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from hookbus._events.call_stack import current_listener
from hookbus._run.validation_contexts import OptimizerModes
from hookbus.distributed.unwrap import clean_names, get_state_dict, strip_wrappers
from hookbus.errors import HookError

if TYPE_CHECKING:
    from torch import Tensor, nn

StateDict = dict[str, "Tensor"]


class AverageProvider(Protocol):
    """Protocol of objects that average the weights of a model.

    Two further methods are optional: `raw()` returns the raw weights while the averaged ones are in the model, and None
    otherwise, which saves the run a copy; `wait()` blocks until no update is running on another thread.
    """

    def averaged(self) -> StateDict | None:
        """Return the averaged weights by their names in the state dict of the model; None before the first average.

        The tensors are references, since best weights that are restored after the training are copied into them.
        """

    def applied(self) -> AbstractContextManager[Any]:
        """Context manager in which the model contains the averaged weights. It restores the raw ones bit-exactly."""


class Weights:
    """Access to the weights of the model of a run.

    Args:
        model: Function that returns the model, or None if the run has no model.
        optimizers: Function that returns the optimizers by name.

    Attributes:
        modes: Modes of the optimizers.
        exchanged: Whether training has ended and the model no longer contains the weights at its end.
    """

    def __init__(
        self, model: Callable[[], nn.Module | None], optimizers: Callable[[], Mapping[str, Any]] = dict
    ) -> None:
        self._model = model  # a function, because a later run of the bus may replace the model
        self.modes = OptimizerModes(optimizers)
        self._provider: AverageProvider | None = None
        self._owner = ""
        self._names_checked = False
        self._is_applied = False
        self._raw: StateDict | None = None  # of a provider without `raw`, while the averaged weights are applied
        self._readers: list[Callable[[], object]] = []
        self._restore: Callable[[], bool] | None = None
        self._restore_owner = ""
        self.exchanged = False

    def provide(self, provider: AverageProvider | None) -> None:
        """Register the provider of averaged weights, usually in `before_run`; None unregisters it.

        Validations and tests then evaluate the averaged weights, and checkpoints contain them as `ema_state_dict`. A
        hook that is removed from the bus no longer provides them.

        Args:
            provider: Object with the methods of `AverageProvider`.

        Raises:
            HookError: If the provider lacks a method, or another provider is registered.
        """
        listener = current_listener()
        owner = "" if listener is None else listener.hook
        if provider is not None:
            _check_methods(provider)
            if self._provider is not None and self._provider is not provider:
                raise HookError(
                    f"run.weights.provide: {_describe(self._provider, self._owner)} and {_describe(provider, owner)} "
                    "both average the weights. Use only one averaging hook per run."
                )
        self._provider, self._owner, self._names_checked = provider, owner, False

    def release(self, owner: str) -> None:
        """Unregister what a hook has registered: the provider, and the function at the end of training."""
        if self._owner == owner:
            self.provide(None)
        if self._restore is not None and self._restore_owner == owner:
            self._restore = None

    def provides(self, context: Callable[[], AbstractContextManager[Any]]) -> bool:
        """Return whether a context manager is that of the averaged weights."""
        return context == self.applied or (self._provider is not None and context == self._provider.applied)

    def raw(self) -> StateDict:
        """Return the raw weights, also while the model contains the averaged ones. References, not copies."""
        raw = _call_optional(self._provider, "raw") if self._raw is None else self._raw
        model = self._model()
        if model is None:
            return {} if raw is None else raw
        return get_state_dict(model) if raw is None else clean_names(model, raw)

    def averaged(self) -> StateDict | None:
        """Return the averaged weights; None if no hook averages.

        Raises:
            HookError: If the provider returns a name that the model does not have, or a tensor of another shape.
        """
        averaged, model = None if self._provider is None else self._provider.averaged(), self._model()
        if averaged is not None and model is not None:
            averaged = clean_names(model, averaged)
        if averaged is not None and not self._names_checked:
            _check_names(averaged, self.raw(), _describe(self._provider, self._owner))
            self._names_checked = True
        return averaged

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Context manager in which the model contains the averaged weights; no effect if no hook averages."""
        self.wait_for_readers()
        if self._provider is None or self._is_applied:
            yield
            return
        model = None if hasattr(self._provider, "raw") else self._model()
        self._raw = None if model is None else _copy(strip_wrappers(model).state_dict())
        self._is_applied = True
        try:
            with self._provider.applied():
                yield
        finally:
            self._raw, self._is_applied = None, False

    def eval_mode(self) -> AbstractContextManager[object]:
        """Context manager in which optimizers with modes are in evaluation mode, such as the schedule-free ones.

        Validations and checkpoints use these weights. On exit, the weights of training mode are restored bit-exactly.
        """
        return self.modes.evaluating(self.wait_for_threads)

    def wait(self) -> None:
        """Block until no other thread modifies the weights."""
        _call_optional(self._provider, "wait")

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
        """Copy weights into the model, and into the average if there is one. Optimizers are set to evaluation mode.

        Args:
            raw: State dict of the model.
            averaged: Averaged weights by name; None leaves the average unchanged.

        Raises:
            HookError: If the weights do not match the model, or the model contains the averaged weights.
        """
        model, own = self._model(), self.averaged()
        if model is None or self._is_applied or _call_optional(self._provider, "raw") is not None:
            raise HookError(
                "run.weights.load: the model contains the averaged weights, or the run has no model. Load weights "
                "outside of validations."
            )
        from hookbus.checkpoint.weights import rename_weights  # imports torch
        from hookbus.distributed.sharding import shard_like

        self.wait_for_threads()
        # The loaded weights are to be evaluated; `train` of an optimizer continues the training from them.
        self.modes.end_training()
        try:
            strip_wrappers(model).load_state_dict(rename_weights(model, shard_like(raw, model, None)))
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
        listener = current_listener()
        self._restore, self.exchanged = restore, False
        self._restore_owner = "" if listener is None else listener.hook

    def finish(self) -> bool:
        """Exchange the weights if a hook has registered it. Called after training, when the last checkpoint is saved.

        Returns:
            Whether the weights were exchanged.
        """
        self.exchanged = self._restore is not None and self._restore()
        return self.exchanged

    def wait_for_threads(self) -> None:
        """Block until no other thread reads or modifies the weights."""
        self.wait()
        self.wait_for_readers()


def _check_methods(provider: object) -> None:
    """Raise if a provider lacks a required method."""
    missing = [name for name in ("averaged", "applied") if not callable(getattr(provider, name, None))]
    if missing:
        raise HookError(
            f"run.weights.provide: {type(provider).__name__} has no method {' and no method '.join(missing)}. Pass an "
            "object with averaged(), which returns the averaged weights by name, and applied(), a context manager in "
            "which the model contains them."
        )


def _check_names(averaged: Mapping[str, Any], own: Mapping[str, Any], provider: str) -> None:
    """Raise if averaged weights do not have the names and shapes of the model."""
    wrong = [n for n, value in averaged.items() if n not in own or value.shape != getattr(own[n], "shape", None)]
    if wrong:
        raise HookError(
            f"run.weights.averaged: the averages of {provider} must have the names and shapes of the state dict of the "
            f"model, got {', '.join(wrong[:5])}{' ...' if len(wrong) > 5 else ''} ({len(wrong)} of {len(averaged)} do "
            "not match). Return for example `averaged_model.module.state_dict()`."
        )


def _describe(provider: object, owner: str) -> str:
    return f"the hook {owner!r}" if owner else type(provider).__name__


def _call_optional(provider: object, name: str) -> Any:
    method = getattr(provider, name, None)
    return None if method is None else method()


def _copy(weights: Mapping[str, Any]) -> StateDict:
    # The extra state of a module may be any object.
    return {name: value.detach().clone() if hasattr(value, "detach") else value for name, value in weights.items()}
