"""When a learning-rate scheduler is stepped: per update, per epoch, or after a validation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.optim.lr_scheduler import ReduceLROnPlateau

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
        ConfigError: there is no such interval.
    """

    def __init__(self, scheduler: Any, interval: str, monitor: str | None) -> None:
        if interval not in ("epoch", "step"):
            raise ConfigError([f"scheduler_interval: {interval!r} is neither 'epoch' nor 'step'."])
        self.scheduler, self.interval = scheduler, interval
        needs_metric = isinstance(scheduler, ReduceLROnPlateau)
        self.monitor = monitor or ("val/loss" if needs_metric else None)

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
