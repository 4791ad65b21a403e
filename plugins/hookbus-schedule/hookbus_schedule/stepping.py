"""Schedulers that are built from settings, and when each of them is stepped."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, Literal

from torch.optim import lr_scheduler

from hookbus import import_path
from hookbus.errors import ConfigError, did_you_mean
from hookbus_schedule.config import SchedulerConfig
from hookbus_schedule.momentum import MomentumSchedule

__all__ = ["Stepped", "see_that_it_fits", "stepped"]


@dataclass(frozen=True)
class Stepped:
    """A scheduler, and when it is stepped.

    Attributes:
        scheduler: anything with `step`, `state_dict` and `load_state_dict`.
        interval: "step" or "epoch".
        monitor: the metric that it is stepped with, after each validation; None for none.
    """

    scheduler: Any
    interval: Literal["step", "epoch"]
    monitor: str | None


def stepped(given: SchedulerConfig, interval: Literal["step", "epoch"], optimizer: Any) -> Stepped:
    """Build a scheduler, or take the one that is there.

    Args:
        given: what the settings say of it.
        interval: when it is stepped, unless they say so.
        optimizer: whose groups it changes.

    Raises:
        ConfigError: there is no such scheduler, or it cannot be built.
    """
    scheduler = given.scheduler if given.type is None else _built(given, optimizer)
    needs_metric = isinstance(scheduler, lr_scheduler.ReduceLROnPlateau) or given.type == "ReduceLROnPlateau"
    return Stepped(scheduler, given.interval or interval, given.monitor or ("val/loss" if needs_metric else None))


def see_that_it_fits(given: SchedulerConfig) -> None:
    """See that there is such a scheduler, and that it takes these settings; nothing is built.

    Raises:
        ConfigError: there is none, or it does not.
    """
    if given.type is None:
        return
    factory, settings = _factory(given.type), given.model_extra or {}
    try:
        taken = inspect.signature(factory)
    except (TypeError, ValueError):  # nobody knows what it takes
        return
    try:
        taken.bind(None, **settings)
    except TypeError as error:
        unknown = next((each for each in settings if each not in taken.parameters), None)
        near = did_you_mean(unknown, list(taken.parameters)[1:]) if unknown is not None else ""
        raise ConfigError([f"schedulers: {given.type}: {error}.{near}"]) from None


def _built(given: SchedulerConfig, optimizer: Any) -> Any:
    factory, settings = _factory(str(given.type)), given.model_extra or {}
    try:
        if given.parameter == "momentum":
            return MomentumSchedule(optimizer, lambda stand_in: factory(stand_in, **settings))
        return factory(optimizer, **settings)
    except (TypeError, ValueError) as error:
        raise ConfigError([f"schedulers: {given.type} cannot be built: {error}"]) from None


def _factory(name: str) -> Any:
    if ":" in name or "." in name:
        try:
            return import_path(name)
        except ImportError as error:
            raise ConfigError([f"schedulers: {error}"]) from None
    found = getattr(lr_scheduler, name, None)
    if found is None:
        near = did_you_mean(name, [each for each in lr_scheduler.__all__ if each != "LRScheduler"])
        raise ConfigError([f"schedulers: {name!r} is no scheduler of torch.optim.lr_scheduler.{near}"])
    return found
