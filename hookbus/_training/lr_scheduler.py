"""Steps of a learning-rate scheduler: after each optimizer step, each epoch or each validation."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from hookbus._events.points import Unit
from hookbus._training.scheduler_length import check_scheduler_steps, dry_run, get_first_changes
from hookbus._utils.arguments import get_by_name, schedules
from hookbus.errors import ConfigError

if TYPE_CHECKING:
    from hookbus._run.run import Run


class LRSchedulerStepper:
    """Step a learning-rate scheduler at its interval.

    Args:
        scheduler: A scheduler of torch.optim.lr_scheduler, or an object with a compatible `step`; a mapping of names
            to schedulers; or None.
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
        parts = list(get_by_name(scheduler).values())
        if monitor is not None and parts and all(map(_is_stepped_with_epoch, parts)):
            names = ", ".join(type(part).__name__ for part in parts)
            raise ConfigError([f"scheduler_monitor: {names} takes no metric, got {monitor!r}. Remove `monitor`."])
        needs_metric = any(isinstance(part, ReduceLROnPlateau) for part in parts)
        self.monitor = monitor or ("val/loss" if needs_metric else None)
        # Of several schedulers, only those that take a metric are stepped after a validation.
        self._monitored = [part for part in parts if self.monitor is not None and not _is_stepped_with_epoch(part)]
        self._scheduled = [part for part in parts if not any(part is other for other in self._monitored)]

    def check_length(self, steps: int) -> None:
        """Check that the scheduler accepts a number of further steps.

        Args:
            steps: Number of steps, a lower bound.

        Raises:
            ConfigError: If a step would raise an exception.
        """
        # A scheduler that takes a metric has no length.
        for part in self._scheduled:
            check_scheduler_steps(part, steps)

    def dry_run(self, steps: int) -> None:
        """Execute steps of a copy of the scheduler.

        Raises:
            ConfigError: If a step raises an exception.
        """
        for part in self._scheduled:
            dry_run(part, steps)
        for part in self._monitored:
            dry_run(part, steps, 0.0)

    def get_milestones(self) -> dict[str, tuple[int, Unit]]:
        """Return the epochs or optimizer steps in which the schedulers first change the learning rate."""
        unit: Unit = "epoch" if self.interval == "epoch" else "step"
        return {
            setting: (number, unit) for part in self._scheduled for setting, number in get_first_changes(part).items()
        }

    def warn_if_never_stepped(self, run: Run) -> None:
        """Warn if the run ends before an epoch-wise scheduler is stepped."""
        length, limit = run.clock.epoch_length, run.clock.max_iters
        is_per_epoch = self._scheduled and self.interval == "epoch"
        if is_per_epoch and length is not None and limit is not None and limit < length:
            run.logger.warning(
                "scheduler (%s): stepped after each epoch of %s iterations, but the run ends after %s, so the learning "
                "rate does not change. Set scheduler_interval='step' (`scheduler.interval: step` in a run file).",
                ", ".join(type(part).__name__ for part in self._scheduled),
                length,
                limit,
            )

    def after_optimizer_step(self, optimizer: Any) -> None:
        """Step the schedulers of an optimizer with interval "step". Called after each optimizer step."""
        if self.interval == "step":
            for part in self._scheduled:
                if len(self._scheduled) == 1 or schedules(part, optimizer):
                    part.step()

    def after_epoch(self, run: Run) -> None:
        """Step the schedulers with interval "epoch". Called after each epoch and its validation."""
        # A truncated epoch is not counted: the schedule would otherwise depend on when a run is interrupted.
        if self.interval == "epoch" and run.epoch_complete:
            for part in self._scheduled:
                part.step()

    def after_validation(self, run: Run) -> None:
        """Step the schedulers with the monitored metric. Called after each validation."""
        for part in self._monitored:
            part.step(run.metrics.results[self.monitor])  # type: ignore[index]


def _is_stepped_with_epoch(scheduler: Any) -> bool:
    """Whether the first argument of `step` is an epoch and not a metric."""
    return isinstance(scheduler, LRScheduler) and "epoch" in list(inspect.signature(scheduler.step).parameters)[:1]
