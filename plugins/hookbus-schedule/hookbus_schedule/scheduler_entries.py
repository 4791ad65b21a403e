"""Construction of schedulers from their configuration."""

from __future__ import annotations

import inspect
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from torch.optim import lr_scheduler

from hookbus import import_string
from hookbus.errors import ConfigError, suggest_names
from hookbus_schedule.config import SchedulerConfig
from hookbus_schedule.momentum import MomentumSchedule

__all__ = ["SchedulerEntry", "build_scheduler_entry", "check_scheduler_config", "get_monitor"]


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
    """Build a scheduler, or use the configured object.

    Args:
        config: Configuration of the scheduler.
        interval: Interval if the configuration sets none.
        optimizer: Optimizer to schedule.

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
    """Return the metric that a scheduler receives; None if it receives none, or if that is known only when it is built.

    Args:
        config: Configuration of the scheduler. A type that does not exist receives no metric.
    """
    kind: Any = type(config.scheduler)
    if config.type is not None:
        with suppress(ConfigError):  # reported by `check_scheduler_config`
            kind = _get_factory(config.type)
    is_plateau = inspect.isclass(kind) and issubclass(kind, lr_scheduler.ReduceLROnPlateau)
    return config.monitor or ("val/loss" if is_plateau else None)


def check_scheduler_config(config: SchedulerConfig) -> None:
    """Check the type and the arguments of a scheduler without building it.

    Args:
        config: Configuration of the scheduler.

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
        raise ConfigError([f"schedulers: {config.type}: {error}.{near}"]) from None


def _build(config: SchedulerConfig, optimizer: Any) -> Any:
    factory, settings = _get_factory(str(config.type)), config.model_extra or {}
    try:
        if config.parameter == "momentum":
            return MomentumSchedule(optimizer, lambda proxy: factory(proxy, **settings))
        return factory(optimizer, **settings)
    except (TypeError, ValueError) as error:
        raise ConfigError([f"schedulers: {config.type} cannot be built: {error}"]) from None


def _get_factory(name: str) -> Any:
    if ":" in name or "." in name:
        try:
            return import_string(name)
        except ImportError as error:
            raise ConfigError([f"schedulers: {error}"]) from None
    factory = getattr(lr_scheduler, name, None)
    if factory is None:
        # LRScheduler is the abstract base class.
        near = suggest_names(name, [known for known in lr_scheduler.__all__ if known != "LRScheduler"])
        raise ConfigError([f"schedulers: {name!r} is not in torch.optim.lr_scheduler.{near}"])
    return factory
