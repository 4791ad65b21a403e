"""Construction of learning rate and momentum schedulers from their configuration."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import lr_scheduler

from hookbus import import_string
from hookbus.errors import ConfigError, format_error, suggest_names
from hookbus_schedule.config import SchedulerConfig


class MomentumSchedule:
    """Apply a learning rate scheduler to the momentum of an optimizer.

    The scheduler steps a proxy optimizer whose learning rates are the momenta; after each step the values are copied to
    the optimizer.

    Args:
        optimizer: Optimizer whose groups have `momentum`, or `betas`, of which the first is scheduled.
        factory: Function that returns a scheduler for the proxy optimizer.

    Raises:
        ValueError: If a group has neither `momentum` nor `betas`.
    """

    def __init__(self, optimizer: Any, factory: Callable[[torch.optim.Optimizer], Any]) -> None:
        self._optimizer = optimizer  # not its groups, which Optimizer.load_state_dict replaces
        momenta = [_get_momentum(group) for group in optimizer.param_groups]
        self._proxy = torch.optim.SGD([{"params": [torch.zeros(1)], "lr": value} for value in momenta])
        self._scheduler = factory(self._proxy)
        # Without gradients this is a no-op. It prevents the warning of torch that the scheduler is stepped before the
        # optimizer.
        self._proxy.step()
        self._copy_momenta()

    def step(self, *arguments: Any) -> None:
        """Step the scheduler and set the momenta of the optimizer.

        Args:
            *arguments: Arguments of `step()` of the scheduler.
        """
        self._add_groups()
        self._scheduler.step(*arguments)
        self._copy_momenta()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the scheduler."""
        return self._scheduler.state_dict()  # type: ignore[no-any-return]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state returned by `state_dict()`. The state of the optimizer must be restored before."""
        self._add_groups()
        self._scheduler.load_state_dict(state)
        for proxy_group, group in zip(self._proxy.param_groups, self._optimizer.param_groups, strict=True):
            proxy_group["lr"] = _get_momentum(group)

    def _add_groups(self) -> None:
        # Groups may be added to the optimizer during the training, for instance for unfrozen layers.
        for group in self._optimizer.param_groups[len(self._proxy.param_groups) :]:
            first = _get_momentum(group)
            self._proxy.add_param_group({"params": [torch.zeros(1)], "lr": first, "initial_lr": first})

    def _copy_momenta(self) -> None:
        for proxy_group, group in zip(self._proxy.param_groups, self._optimizer.param_groups, strict=True):
            if "betas" in group:
                group["betas"] = (proxy_group["lr"], *group["betas"][1:])
            else:
                group["momentum"] = proxy_group["lr"]


def _get_momentum(group: dict[str, Any]) -> float:
    if "betas" in group:
        return float(group["betas"][0])
    if "momentum" not in group:
        raise ValueError("the optimizer must have momentum or betas to schedule the momentum, got neither.")
    return float(group["momentum"])


@dataclass(frozen=True)
class SchedulerEntry:
    """A scheduler and the interval of its steps.

    Attributes:
        scheduler: Object with `step`, `state_dict` and `load_state_dict`.
        interval: "step" or "epoch".
        monitor: Metric to pass to `step` after each validation; None if it receives no metric.
        optimizer: Optimizer that is scheduled; None if it is unknown.
    """

    scheduler: Any
    interval: Literal["step", "epoch"]
    monitor: str | None
    optimizer: Any

    def is_of(self, optimizer: Any) -> bool:
        """Return whether the scheduler changes a parameter group of an optimizer."""
        if self.optimizer is None:
            return True
        groups = {id(group) for group in self.optimizer.param_groups}
        return any(id(group) in groups for group in optimizer.param_groups)


def build_scheduler_entry(
    config: SchedulerConfig, interval: Literal["step", "epoch"], optimizer: Any
) -> SchedulerEntry:
    """Build a scheduler of an optimizer, or use the configured object; `interval` is that of the hook.

    Raises:
        ConfigError: If the scheduler does not exist or cannot be built.
    """
    scheduler = config.scheduler if config.type is None else _build(config, optimizer)
    return SchedulerEntry(
        scheduler,
        config.interval or interval,
        get_monitor(config) or ("val/loss" if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau) else None),
        getattr(scheduler, "optimizer", None) if optimizer is None else optimizer,
    )


def get_monitor(config: SchedulerConfig) -> str | None:
    """Return the metric that a scheduler receives; None if it receives none, or one that is known only once built."""
    kind: Any = type(config.scheduler)
    if config.type is not None:
        with suppress(ConfigError):  # reported by `check_scheduler_config`
            kind = _get_factory(config.type)
    is_plateau = inspect.isclass(kind) and issubclass(kind, lr_scheduler.ReduceLROnPlateau)
    return config.monitor or ("val/loss" if is_plateau else None)


def check_scheduler_config(config: SchedulerConfig) -> None:
    """Check the type and the arguments of a scheduler without building it.

    Raises:
        ConfigError: If the type does not exist or does not accept the arguments.
    """
    if config.type is None:
        return
    factory, settings = _get_factory(config.type), config.model_extra or {}
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):
        return  # built-in callables have no signature
    try:
        signature.bind(None, **settings)
    except TypeError as error:
        unknown = next((key for key in settings if key not in signature.parameters), None)
        near = suggest_names(unknown, list(signature.parameters)[1:]) if unknown is not None else ""
        raise ConfigError(f"schedulers: {config.type}: {error}.{near}") from None


def _build(config: SchedulerConfig, optimizer: Any) -> Any:
    factory, settings = _get_factory(str(config.type)), config.model_extra or {}
    try:
        if config.parameter == "momentum":
            return MomentumSchedule(optimizer, lambda proxy: factory(proxy, **settings))
        return factory(optimizer, **settings)
    except Exception as error:  # of a class of torch or a function of the user
        raise ConfigError(f"schedulers: {config.type} cannot be built: {format_error(error)}") from error


def _get_factory(name: str) -> Any:
    if ":" in name or "." in name:
        try:
            return import_string(name)
        except ImportError as error:
            raise ConfigError(f"schedulers: {error}") from None
    factory = getattr(lr_scheduler, name, None)
    if factory is None:
        # LRScheduler is the abstract base class.
        near = suggest_names(name, [known for known in lr_scheduler.__all__ if known != "LRScheduler"])
        raise ConfigError(f"schedulers: {name!r} is not in torch.optim.lr_scheduler.{near}")
    return factory


def copy_optimizer(optimizer: Any) -> Any:
    """Return a copy of an optimizer with its settings and dummy parameters; None if it cannot be copied."""
    groups = getattr(optimizer, "param_groups", [])
    # `deepcopy` replaces objects found in its memo, so neither the parameters nor their state are copied.
    memo: dict[int, Any] = {id(weight): nn.Parameter(torch.zeros(1)) for group in groups for weight in group["params"]}
    if (state := getattr(optimizer, "state", None)) is not None:
        memo[id(state)] = {}
    try:
        return copy.deepcopy(optimizer, memo)
    except Exception:  # an optimizer that holds an object that cannot be copied; the check is optional
        return None
