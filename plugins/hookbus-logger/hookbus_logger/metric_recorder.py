"""Base class of the hooks that log training metrics: determines when a record is due."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hookbus import Hook, Priority, Run, Schedule, every, hookimpl
from hookbus.checkpoint import schema
from hookbus.metrics import Metrics, Window
from hookbus_logger.config import RecordConfig

STATE: dict[str, schema.Check] = {"recorded_epoch": schema.integer(-1), "waiting": schema.boolean}
"""Checks of the state of the recorder."""


def _build_schedule(config: Any) -> Schedule:
    return every(config.interval, unit="batch" if config.by_epoch else "iter")


class MetricRecorder(Hook):
    """Request the mean metrics over an interval when a record is due, and pass them to `write_record`.

    A record is due every `interval` iterations, counted within each epoch if `by_epoch` is true and over the whole run
    otherwise. An incomplete interval at the end of an epoch is dropped if `by_epoch` and `ignore_last` are true, unless
    the epoch has no record yet. An incomplete interval at the end of the run is recorded, unless a checkpoint stores it
    for a resumed run.
    """

    Config = RecordConfig
    priority = Priority.NORMAL
    observer = True
    ranks = "main"
    records_means = True
    config: RecordConfig
    state_schema = schema.record(STATE)

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self._reset()

    def write_record(self, run: Run, metrics: Metrics, step: int, rates: Mapping[str, float]) -> None:
        """Write one training record.

        Args:
            run: Run whose clock is at the iteration of the record.
            metrics: Mean metrics over the interval, by full name.
            step: Number of completed optimizer steps.
            rates: Learning rates of the last optimizer steps, see `Run.learning_rates`.

        Raises:
            NotImplementedError: If the subclass does not override this method.
        """
        raise NotImplementedError(f"{type(self).__name__}: `write_record` is not implemented.")

    # -- events --------------------------------------------------------------------------------

    def before_run(self, run: Run, mode: str) -> None:
        """Create the metric window, so that it includes the first iteration."""
        if not run.iters_done:
            self._reset()
        if mode == "train":
            self._get_window(run)
            run.track_learning_rates()

    def before_train(self, run: Run) -> None:
        """Request again a record that was pending when the checkpoint was saved."""
        if self._is_pending:
            self._request_metrics(run)

    @hookimpl(frequency=False)
    def before_train_epoch(self, run: Run) -> None:
        """Drop the incomplete interval of the previous epoch, unless its record is pending."""
        # The event is also emitted when a run resumes within an epoch, whose restored window must be preserved.
        is_epoch_start = run.iters_done == run.epoch_first_iter
        if is_epoch_start and self.config.by_epoch and not self._is_pending:
            self._get_window(run).reset()

    @property
    def handles_incomplete_intervals(self) -> bool:
        """Whether an interval that is longer than the run has an effect: it is recorded at the end."""
        return True

    @hookimpl(when=_build_schedule)
    def after_train_iter(self, run: Run) -> None:
        """Request a record at the end of an interval."""
        self._request_record(run)

    @hookimpl(frequency=False)
    def after_train_epoch(self, run: Run) -> None:
        """Request a record of the incomplete interval, unless it is to be dropped."""
        is_only_record = self._recorded_epoch != run.epoch
        is_due = self.config.by_epoch and run.epoch_complete and (is_only_record or not self.config.ignore_last)
        if (is_due or run.is_at_limit) and self._get_window(run):
            self._request_record(run)

    def after_train(self, run: Run) -> None:
        """Request a record of the incomplete interval, unless a checkpoint stores it for a resumed run."""
        if self._get_window(run) and not run.resumable:
            self._request_record(run)

    # -- state ---------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the last epoch with a record, and whether a record is pending."""
        return {"recorded_epoch": self._recorded_epoch, "waiting": self._is_pending}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state returned by `state_dict()`."""
        self._recorded_epoch, self._is_pending = state["recorded_epoch"], state["waiting"]

    # -- internal ------------------------------------------------------------------------------

    def _reset(self) -> None:
        self._recorded_epoch, self._is_pending = -1, False

    def _get_window(self, run: Run) -> Window:
        return run.metrics.window(self.name)

    def _request_record(self, run: Run) -> None:
        self._recorded_epoch = run.epoch
        self._request_metrics(run)

    def _request_metrics(self, run: Run) -> None:
        self._is_pending = True
        run.request_record(self._get_window(run), self._deliver)

    def _deliver(self, metrics: Metrics, step: int) -> None:
        self._is_pending = False
        self.write_record(self.run, metrics, step, self.run.learning_rates())


def has_epochs(run: Run) -> bool:
    """Return whether the loop has begun an epoch; a loop that emits events of iterations only has none."""
    return run.epoch_open or run.epochs_done > 0


def get_epoch(run: Run) -> int:
    """Return the epoch of the last iteration, counted from 1; 0 before the first iteration."""
    return run.epochs_done + (run.epoch_open and run.iters_done > run.epoch_first_iter)
