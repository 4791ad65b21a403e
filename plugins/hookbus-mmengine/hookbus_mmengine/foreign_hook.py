"""Hooks of MMEngine in the Trainer of hookbus, and in custom loops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MethodType
from typing import Any

from mmengine.hooks import Hook as ForeignHook
from mmengine.hooks import ParamSchedulerHook
from mmengine.optim import _ParamScheduler
from mmengine.registry import HOOKS
from mmengine.runner import get_priority

from hookbus import Hook, Run
from hookbus.errors import ConfigError
from hookbus_mmengine.runner_use import find_problem
from hookbus_mmengine.runner_view import RunnerView


class MMEngineHook(Hook):
    """Hook of MMEngine as a hook of hookbus. Instead of a Runner it receives a view of the run.

    Args:
        hook: Hook of MMEngine, or its settings with the key `type`.
        param_schedulers: Parameter schedulers of MMEngine, for `ParamSchedulerHook`.
        settings: Common settings of hooks. Default of `name`: the class of the hook; of `priority`: that of the hook.

    Raises:
        ConfigError: If an argument is invalid, or the hook uses a part of the Runner that a run does not have, or has
            no effect.
    """

    makes_requests = True

    def __init__(self, hook: ForeignHook | Mapping[str, Any], *, param_schedulers: Sequence[Any] = (), **settings: Any):
        self.hook = _build(hook)
        _check_schedulers(param_schedulers)
        name = type(self.hook).__name__
        if problem := find_problem(type(self.hook)):
            raise ConfigError([f"MMEngineHook: {name} {problem}"])
        if isinstance(self.hook, ParamSchedulerHook) != bool(param_schedulers):
            raise ConfigError(
                [
                    "MMEngineHook: param_schedulers should be set for ParamSchedulerHook, and for no other hook, got "
                    f"{len(param_schedulers)} schedulers for {name}. Pass both, or none of them."
                ]
            )
        super().__init__({"name": name, "priority": get_priority(self.hook.priority), **settings})
        self._schedulers = list(param_schedulers)
        self._view: RunnerView | None = None
        for point in self.hook.get_triggered_stages():
            setattr(self, point, MethodType(_make_listener(point), self))

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the parameter schedulers."""
        return {"schedulers": [scheduler.state_dict() for scheduler in self._schedulers]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the states of the parameter schedulers."""
        for scheduler, saved in zip(self._schedulers, state["schedulers"], strict=True):
            scheduler.load_state_dict(saved)

    def _call(self, point: str, **arguments: Any) -> None:
        run: Run = self.run
        if self._view is None or self._view.run is not run:
            self._view = RunnerView(run, self._schedulers)
        self._view.point = point
        getattr(self.hook, point)(self._view, **arguments)


def _build(hook: Any) -> ForeignHook:
    """Return a hook of MMEngine from itself or its settings.

    Raises:
        ConfigError: If it is neither, or MMEngine cannot build it.
    """
    if isinstance(hook, ForeignHook):
        return hook
    if not isinstance(hook, Mapping):
        raise ConfigError(
            [f"MMEngineHook: hook should be a hook of MMEngine or its settings, got {hook!r}. Pass an instance."]
        )
    try:
        return HOOKS.build(dict(hook))
    except (AssertionError, KeyError, TypeError, ValueError) as error:
        reason = error.args[0] if error.args else type(error).__name__
        raise ConfigError([f"MMEngineHook: MMEngine cannot build the hook, got {dict(hook)}. {reason}"]) from error


def _check_schedulers(schedulers: Any) -> None:
    """Raise unless it is a list of parameter schedulers of MMEngine, not of settings that a Runner would build.

    Raises:
        ConfigError: If it is not.
    """
    if not isinstance(schedulers, Sequence) or not all(isinstance(part, _ParamScheduler) for part in schedulers):
        raise ConfigError(
            [
                "MMEngineHook: param_schedulers should be a list of parameter schedulers of mmengine.optim, got "
                f"{schedulers!r}. Build them with the optimizer of the Trainer."
            ]
        )


def _make_listener(point: str) -> Callable[..., None]:
    """Return a method that listens at a point, with the arguments that the hook receives there."""
    side, _, rest = point.partition("_")

    def listen(self: MMEngineHook) -> None:
        self._call(point)

    def listen_before_iter(self: MMEngineHook, batch_idx: int, batch: Any) -> None:
        self._call(point, batch_idx=batch_idx, data_batch=batch)

    def listen_after_iter(self: MMEngineHook, batch_idx: int, batch: Any, outputs: Any) -> None:
        self._call(point, batch_idx=batch_idx, data_batch=batch, outputs=outputs)

    def listen_after_evaluation(self: MMEngineHook, metrics: Mapping[str, Any]) -> None:
        self._call(point, metrics=_select(metrics, f"{rest.removesuffix('_epoch')}/"))

    def listen_checkpoint(self: MMEngineHook, checkpoint: dict[str, Any]) -> None:
        self._call(point, checkpoint=checkpoint)

    if rest.endswith("_iter"):
        return listen_before_iter if side == "before" else listen_after_iter
    if point in ("after_val_epoch", "after_test_epoch"):
        return listen_after_evaluation
    return listen_checkpoint if rest.endswith("checkpoint") else listen


def _select(metrics: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return the results whose names have a prefix, without it."""
    return {name.removeprefix(prefix): value for name, value in metrics.items() if name.startswith(prefix)}
