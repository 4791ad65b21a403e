"""Raw and averaged weights of a run.

An averaging hook (EMA) registers as a provider. Checkpoints, evaluations and tests access averaged weights only
through `Weights`, and are thus independent of the averaging hook. With several averaging hooks, the first one in the
order of the registration is the primary one, and validations of the run evaluate each of the further ones as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from hookbus._events.call_stack import current_listener
from hookbus._run.average_providers import AverageProviders, call_optional
from hookbus._run.evaluated_weights import EVALUATED, EvaluatedWeights
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
        hooks: Function that returns the names of the hooks in the order of their registration.

    Attributes:
        modes: Modes of the optimizers.
        evaluated: Weights that a hook has exchanged for a validation without being a provider.
        exchanged: Whether training has ended and the model no longer contains the weights at its end.
    """

    def __init__(
        self,
        model: Callable[[], nn.Module | None],
        optimizers: Callable[[], Mapping[str, Any]] = dict,
        hooks: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        self._model = model  # a function, because a later run of the bus may replace the model
        self.evaluated = EvaluatedWeights(model)
        self.modes = OptimizerModes(optimizers)
        self._providers = AverageProviders(hooks)
        self._is_applied = False
        self._raw: StateDict | None = None  # of a provider without `raw`, while the averaged weights are applied
        self._readers: list[Callable[[], object]] = []
        self._restore: Callable[[], bool] | None = None
        self._restore_owner = ""
        self.exchanged = False

    def provide(self, provider: AverageProvider | None) -> None:
        """Register a provider of averaged weights, usually in `before_run`; None unregisters that of the hook.

        Validations and tests then evaluate the averaged weights, and checkpoints contain them as `ema_state_dict`. If
        several hooks average, this holds for the first one in the order of the registration, the primary one. The
        validations and tests of the run evaluate the averages of each further hook as well, whose results have its
        name, such as `val/<hook>/loss`, and checkpoints contain them as `averages`. A hook that is removed from the bus
        no longer provides averages.

        Args:
            provider: Object with the methods of `AverageProvider`.

        Raises:
            HookError: If the provider lacks a method, or the hook has registered another provider.
        """
        listener = current_listener()
        owner = "" if listener is None else listener.hook
        if provider is None:
            self._providers.unregister(owner)
        else:
            self._providers.register(owner, provider)

    def release(self, owner: str) -> None:
        """Unregister what a hook has registered: the provider, and the function at the end of training."""
        if owner:
            self._providers.unregister(owner)
        if self._restore is not None and self._restore_owner == owner:
            self._restore = None

    def provides(self, context: Callable[[], AbstractContextManager[Any]]) -> bool:
        """Return whether a context manager is that of the averaged weights."""
        providers = self._providers.get_all().values()
        return context == self.applied or any(context == provider.applied for provider in providers)

    def raw(self) -> StateDict:
        """Return the raw weights, also while the model contains the averaged ones. References, not copies."""
        raw = self._get_stored_raw()
        model = self._model()
        if model is None:
            return {} if raw is None else raw
        return get_state_dict(model) if raw is None else clean_names(model, raw)

    @property
    def further(self) -> list[str]:
        """Names of the hooks that average, except for the primary one."""
        return list(self._providers.get_all())[1:]

    def averaged(self, name: str | None = None) -> StateDict | None:
        """Return the averaged weights; None if no hook averages, or before the average starts.

        Args:
            name: Name of the averaging hook. Default: the primary one.

        Raises:
            HookError: If the provider returns a name that the model does not have, or a tensor of another shape.
        """
        (owner, provider), model = self._providers.find(name), self._model()
        averaged = None if provider is None else provider.averaged()
        if averaged is not None and model is not None:
            averaged = clean_names(model, averaged)
        if averaged is not None:
            self._providers.check_names(owner, averaged, self.raw)
        return averaged

    def further_averages(self) -> dict[str, StateDict]:
        """Return the averaged weights of the hooks except for the primary one, by name; without those of no average."""
        averages = {name: self.averaged(name) for name in self.further}
        return {name: averaged for name, averaged in averages.items() if averaged is not None}

    def describe(self, metric: str) -> str:
        """Return which weights a result has.

        These are "raw", "averaged" for the primary average, "averaged/<hook>" for a further one, or "evaluated" for
        weights that a hook has exchanged without being a provider; the best file contains them as `state_dict`.

        Args:
            metric: Full name of the result, such as `val/loss` or `val/<hook>/loss`.
        """
        part = metric.partition("/")[2].partition("/")[0]
        name = part if part in self.further else None
        if name is None and self.evaluated.is_captured:
            return EVALUATED
        if self.averaged(name) is None:
            return "raw"
        return "averaged" if name is None else f"averaged/{name}"

    @contextmanager
    def applied(self, name: str | None = None) -> Iterator[None]:
        """Context manager in which the model contains the averaged weights; no effect if no hook averages.

        Args:
            name: Name of the averaging hook. Default: the primary one.
        """
        self.wait_for_readers()
        provider = self._providers.find(name)[1]
        if provider is None or self._is_applied:
            yield
            return
        model = None if hasattr(provider, "raw") else self._model()
        self._raw = None if model is None else _copy(strip_wrappers(model).state_dict())
        self._is_applied = True
        try:
            with provider.applied():
                yield
        finally:
            self._raw, self._is_applied = None, False

    @property
    def is_applied(self) -> bool:
        """Whether the model contains the averaged weights."""
        return self._is_applied

    def eval_mode(self) -> AbstractContextManager[object]:
        """Context manager in which optimizers with modes are in evaluation mode, such as the schedule-free ones.

        Validations and checkpoints use these weights. On exit, the weights of training mode are restored bit-exactly.
        """
        return self.modes.evaluating(self.wait_for_threads)

    def wait(self) -> None:
        """Block until no other thread modifies the weights."""
        for provider in self._providers.get_all().values():
            call_optional(provider, "wait")

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

    def load(
        self,
        raw: Mapping[str, Any],
        averaged: Mapping[str, Tensor] | None,
        further: Mapping[str, Mapping[str, Tensor]] | None = None,
    ) -> None:
        """Copy weights into the model, and into the averages if there are any. Optimizers are set to evaluation mode.

        Args:
            raw: State dict of the model.
            averaged: Averaged weights by name; None leaves the primary average unchanged.
            further: Averaged weights of further hooks by name; those of other hooks are unchanged. Default: none.

        Raises:
            HookError: If the weights do not match the model, or the model contains the averaged weights.
        """
        model = self._model()
        if model is None or self._is_applied or self._get_stored_raw() is not None:
            raise HookError(
                "run.weights.load: the model contains the averaged weights, or the run has no model. Load weights "
                "outside of validations."
            )
        from hookbus.checkpoint.weights import rename_weights  # imports torch
        from hookbus.distributed.sharding import shard_like

        targets = [(self.averaged(), averaged)]
        targets += [(self.averaged(name), weights) for name, weights in (further or {}).items()]
        self.wait_for_threads()
        # The loaded weights are to be evaluated; `train` of an optimizer continues the training from them.
        self.modes.end_training()
        try:
            strip_wrappers(model).load_state_dict(rename_weights(model, shard_like(raw, model, None)))
            for own, weights in targets:
                averages = {} if weights is None or own is None else shard_like(weights, model, None)
                for name, average in (own or {}).items() if averages else ():
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

    def _get_stored_raw(self) -> StateDict | None:
        """Return the raw weights while the model contains averaged ones, None otherwise."""
        if self._raw is not None:
            return self._raw
        stored = (call_optional(provider, "raw") for provider in self._providers.get_all().values())
        return next((raw for raw in stored if raw is not None), None)

    def wait_for_threads(self) -> None:
        """Block until no other thread reads or modifies the weights."""
        self.wait()
        self.wait_for_readers()


def _copy(weights: Mapping[str, Any]) -> StateDict:
    # The extra state of a module may be any object.
    return {name: value.detach().clone() if hasattr(value, "detach") else value for name, value in weights.items()}
