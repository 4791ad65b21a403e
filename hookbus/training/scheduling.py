"""When a learning-rate scheduler is stepped: per update, per epoch, or after a validation."""

from __future__ import annotations

import copy
import inspect
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from hookbus._imports import cause_of
from hookbus.errors import ConfigError

if TYPE_CHECKING:
    from hookbus.run import Run

__all__ = ["SchedulerSteps"]


class SchedulerSteps:
    """Steps a scheduler at the right moments.

    Args:
        scheduler: of torch.optim.lr_scheduler, or alike; None for none.
        interval: "epoch" or "step".
        monitor: the metric that it is stepped with, after each validation that counts; default the validation loss
            for a ReduceLROnPlateau, None for all others.

    Raises:
        ConfigError: there is no such interval, or the scheduler takes no metric.
    """

    def __init__(self, scheduler: Any, interval: str, monitor: str | None) -> None:
        if interval not in ("epoch", "step"):
            raise ConfigError([f"scheduler_interval: {interval!r} is neither 'epoch' nor 'step'."])
        self.scheduler, self.interval = scheduler, interval
        if monitor is not None and _takes_epoch(scheduler):
            raise ConfigError([f"scheduler_monitor: {type(scheduler).__name__} takes no metric: leave monitor out."])
        needs_metric = isinstance(scheduler, ReduceLROnPlateau)
        self.monitor = monitor or ("val/loss" if needs_metric else None)

    def try_out(self, steps: int) -> None:
        """Step a copy of the scheduler, to see whether it lasts so long. One that cannot be copied is not tried.

        Args:
            steps: how often.

        Raises:
            ConfigError: it cannot be stepped so often.
        """
        trial = _copy_of(self.scheduler)
        if trial is None:
            return
        with warnings.catch_warnings(action="ignore"):  # torch's, about a scheduler without updates
            for number in range(1, steps + 1):
                try:
                    trial.step(*([0.0] if self.monitor is not None else []))
                except Exception as error:
                    raise ConfigError([f"the scheduler fails at its step {number}: {cause_of(error)}."]) from error

    def say_if_it_never_comes(self, run: Run) -> None:
        """A run that ends in the middle of its first epoch never steps a scheduler per epoch."""
        length, limit = run.clock.epoch_length, run.clock.max_iters
        is_per_epoch = self.scheduler is not None and self.monitor is None and self.interval == "epoch"
        if is_per_epoch and length is not None and limit is not None and limit < length:
            run.logger.warning(
                "The scheduler (%s) is stepped after each epoch of %s iterations, and the run ends after %s: it will "
                "change nothing. Step it with each update (scheduler_interval='step', in a file scheduler.interval).",
                type(self.scheduler).__name__,
                length,
                limit,
            )

    def after_update(self) -> None:
        """An optimizer update was made."""
        if self.scheduler is not None and self.monitor is None and self.interval == "step":
            self.scheduler.step()

    def after_epoch(self, run: Run) -> None:
        """An epoch and its validation are over. One that was cut does not count."""
        if self.scheduler is not None and self.monitor is None and self.interval == "epoch" and run.epoch_complete:
            self.scheduler.step()

    def after_validation(self, run: Run) -> None:
        """A validation has found results."""
        if self.scheduler is not None and self.monitor is not None:
            self.scheduler.step(run.metrics.results[self.monitor])


def _takes_epoch(scheduler: Any) -> bool:
    """Whether what its step takes is the number of an epoch, not a metric."""
    return isinstance(scheduler, LRScheduler) and "epoch" in list(inspect.signature(scheduler.step).parameters)[:1]


def _copy_of(scheduler: Any) -> Any:
    """A scheduler whose optimizer has made-up parameters; None where it cannot be copied."""
    groups = getattr(getattr(scheduler, "optimizer", None), "param_groups", [])
    stand_ins = {id(each): nn.Parameter(torch.zeros(1)) for group in groups for each in group["params"]}
    try:
        return copy.deepcopy(scheduler, stand_ins)
    except Exception:
        return None
