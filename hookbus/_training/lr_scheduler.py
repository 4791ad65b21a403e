"""Steps of a learning-rate scheduler: after each optimizer step, each epoch or each validation."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from hookbus._training.scheduler_length import check_length, dry_run
from hookbus.errors import ConfigError

if TYPE_CHECKING:
    from hookbus._run.run import Run

__all__ = ["LRSchedulerStepper"]


class LRSchedulerStepper:
    """Step a learning-rate scheduler at its interval.

    Args:
        scheduler: A scheduler of torch.optim.lr_scheduler, or an object with a compatible `step`; or None.
        interval: "epoch" or "step" (optimizer steps). Ignored with `monitor`.
        monitor: Metric passed to `step` after each validation. Default: "val/loss" for a ReduceLROnPlateau, None for
            any other scheduler.

    Raises:
        ConfigError: If the interval is unknown, or `monitor` is set and the scheduler takes no metric.
    """

    def __init__(self, scheduler: Any, interval: str, monitor: str | None) -> None:
        if interval not in ("epoch", "step"):
            raise ConfigError([f"scheduler_interval: expected 'epoch' or 'step', got {interval!r}."])
        self.scheduler, self.interval = scheduler, interval
        if monitor is not None and _is_stepped_with_epoch(scheduler):
            raise ConfigError(
                [f"scheduler_monitor: {type(scheduler).__name__} takes no metric, got {monitor!r}. Remove `monitor`."]
            )
        needs_metric = isinstance(scheduler, ReduceLROnPlateau)
        self.monitor = monitor or ("val/loss" if needs_metric else None)

    def check_length(self, steps: int) -> None:
        """Check that the scheduler accepts a number of further steps.

        Args:
            steps: Number of steps, a lower bound.

        Raises:
            ConfigError: If a step would raise an exception.
        """
        check_length(self.scheduler, steps, *self._dry_arguments())

    def dry_run(self, steps: int) -> None:
        """Execute steps of a copy of the scheduler.

        Raises:
            ConfigError: If a step raises an exception.
        """
        dry_run(self.scheduler, steps, *self._dry_arguments())

    def warn_if_never_stepped(self, run: Run) -> None:
        """Warn if the run ends before an epoch-wise scheduler is stepped."""
        length, limit = run.clock.epoch_length, run.clock.max_iters
        is_per_epoch = self.scheduler is not None and self.monitor is None and self.interval == "epoch"
        if is_per_epoch and length is not None and limit is not None and limit < length:
            run.logger.warning(
                "scheduler (%s): stepped after each epoch of %s iterations, but the run ends after %s, so the learning "
                "rate does not change. Set scheduler_interval='step' (`scheduler.interval: step` in a run file).",
                type(self.scheduler).__name__,
                length,
                limit,
            )

    def after_optimizer_step(self) -> None:
        """Step a scheduler with interval "step". Called after each optimizer step."""
        if self.scheduler is not None and self.monitor is None and self.interval == "step":
            self.scheduler.step()

    def after_epoch(self, run: Run) -> None:
        """Step a scheduler with interval "epoch". Called after each epoch and its validation."""
        # A truncated epoch is not counted: the schedule would otherwise depend on when a run is interrupted.
        if self.scheduler is not None and self.monitor is None and self.interval == "epoch" and run.epoch_complete:
            self.scheduler.step()

    def after_validation(self, run: Run) -> None:
        """Step a scheduler with the monitored metric. Called after each validation."""
        if self.scheduler is not None and self.monitor is not None:
            self.scheduler.step(run.metrics.results[self.monitor])

    def _dry_arguments(self) -> list[float]:
        return [0.0] if self.monitor is not None else []


def _is_stepped_with_epoch(scheduler: Any) -> bool:
    """Whether the first argument of `step` is an epoch and not a metric."""
    return isinstance(scheduler, LRScheduler) and "epoch" in list(inspect.signature(scheduler.step).parameters)[:1]
