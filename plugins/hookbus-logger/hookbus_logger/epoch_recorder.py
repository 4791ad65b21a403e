"""Base class of the hooks that log training metrics, by the epoch or over the whole run."""

from __future__ import annotations

from typing import Any

from hookbus import Run, Schedule, every, hookimpl
from hookbus.checkpoint import schema
from hookbus.writers import MetricRecorder
from hookbus_logger.config import RecordConfig

STATE: dict[str, schema.Check] = {"recorded_epoch": schema.integer(-1), "waiting": schema.boolean}
"""Checks of the state of the recorder."""


def _build_schedule(config: Any) -> Schedule:
    return every(config.interval, unit="batch" if config.by_epoch else "iter")


class EpochRecorder(MetricRecorder):
    """Record the mean metrics, counting the interval within each epoch if `by_epoch` is true.

    An incomplete interval at the end of an epoch is dropped if `by_epoch` and `ignore_last` are true, unless the epoch
    has no record yet.
    """

    Config = RecordConfig
    config: RecordConfig
    state_schema = schema.record(STATE)
    _recorded_epoch = -1

    # -- events --------------------------------------------------------------------------------

    def before_run(self, run: Run, mode: str) -> None:
        """Reset the state if the run starts from scratch."""
        if not run.iters_done:
            self._recorded_epoch = -1
        super().before_run(run, mode)

    @hookimpl(frequency=False)
    def before_train_epoch(self, run: Run) -> None:
        """Drop the incomplete interval of the previous epoch, unless its record is pending."""
        # The event is also emitted when a run resumes within an epoch, whose restored window must be preserved.
        is_epoch_start = run.iters_done == run.epoch_first_iter
        if is_epoch_start and self.config.by_epoch and not self._record_pending:
            run.metrics.window(self.name).reset()

    @property
    def handles_incomplete_intervals(self) -> bool:
        """Whether an interval that is longer than the run has an effect: it is recorded at the end."""
        return True

    @hookimpl(when=_build_schedule)
    def after_train_iter(self, run: Run) -> None:
        """Request a record at the end of an interval, unless there is one per epoch."""
        if self.logs_by_epoch:
            return
        self._recorded_epoch = run.epoch
        self.request_record(run)

    @hookimpl(frequency=False)
    def after_train_epoch(self, run: Run) -> None:
        """Request a record of the incomplete interval, unless it is to be dropped."""
        is_only_record = self._recorded_epoch != run.epoch
        is_due = self.config.by_epoch and run.epoch_complete and (is_only_record or not self.config.ignore_last)
        if (is_due or run.is_at_limit) and run.metrics.window(self.name):
            self._recorded_epoch = run.epoch
            self.request_record(run)

    # -- state ---------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the last epoch with a record, and whether a record is pending."""
        return {"recorded_epoch": self._recorded_epoch, **super().state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state returned by `state_dict()`."""
        super().load_state_dict(state)
        self._recorded_epoch = state["recorded_epoch"]


def has_epochs(run: Run) -> bool:
    """Return whether the loop has begun an epoch; a loop that emits events of iterations only has none."""
    return run.epoch_open or run.epochs_done > 0


def get_epoch(run: Run) -> int:
    """Return the epoch of the last iteration, counted from 1; 0 before the first iteration."""
    return run.epochs_done + (run.epoch_open and run.iters_done > run.epoch_first_iter)
