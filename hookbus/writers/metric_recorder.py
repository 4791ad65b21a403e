"""Base class of hooks that log the means of training metrics every N iterations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from hookbus._events.markers import hookimpl
from hookbus._events.schedules import every
from hookbus._utils.schema import boolean, record
from hookbus.hook import Hook, HookConfig, Priority
from hookbus.metrics.results import Metrics

if TYPE_CHECKING:
    from hookbus._run.run import Run


class WriterConfig(HookConfig):
    """Schedule of the training metrics."""

    interval: int = Field(default=50, gt=0, description="Log the means of training metrics every N iterations.")


class MetricRecorder(Hook):
    """Request the means of training metrics every `interval` iterations, and pass them to `write_record`.

    A record that is due in an iteration without an optimizer step is delivered at the next step. The incomplete
    interval at the end of training is recorded as well, unless a checkpoint stores it for a resumed run.
    """

    Config: ClassVar[type[HookConfig]] = WriterConfig
    priority = Priority.NORMAL
    observer = True
    ranks = "main"
    records_means = True
    state_schema = record({"waiting": boolean})
    _record_pending = False

    def write_record(self, run: Run, metrics: Metrics, step: int) -> None:
        """Write one record.

        Args:
            run: Run whose clock is at the iteration of the record.
            metrics: Means of the metrics over the interval, by full name.
            step: Number of optimizer steps.
        """
        raise NotImplementedError(f"{type(self).__name__}: `write_record` is not implemented.")

    def before_run(self, run: Run, mode: str) -> None:
        """Create the window of the metrics before the first value is logged."""
        if not run.iters_done:
            self._record_pending = False
        if mode == "train":
            run.metrics.window(self.name)
            run.track_learning_rates()

    def before_train(self, run: Run) -> None:
        """Request again a record that was pending when the checkpoint was saved."""
        if self._record_pending:
            self.request_record(run)

    @hookimpl(when=every("interval"))
    def after_train_iter(self, run: Run) -> None:
        """Request a record."""
        self.request_record(run)

    def after_train(self, run: Run) -> None:
        """Request a record of the incomplete interval, unless a checkpoint stores it for a resumed run."""
        if run.metrics.window(self.name) and not run.resumable:
            self.request_record(run)

    def request_record(self, run: Run) -> None:
        """Request a record of the metrics since the last one.

        Args:
            run: Active run.
        """
        # The record may be delivered several iterations later, at the next optimizer step.
        self._record_pending = True
        run.request_record(run.metrics.window(self.name), self._deliver)

    def state_dict(self) -> dict[str, Any]:
        """Return whether a record is pending."""
        return {"waiting": self._record_pending}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state returned by `state_dict()`."""
        self._record_pending = state["waiting"]

    def _deliver(self, metrics: Metrics, step: int) -> None:
        self._record_pending = False
        self.write_record(self.run, metrics, step)
