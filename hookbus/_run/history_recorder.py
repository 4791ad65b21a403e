"""Recording of the history of a run: a row at the end of each epoch and after each validation.

Values are read once per row, at the end of an epoch or of a validation, never in an iteration. With multiple ranks a
row contains the means over all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from hookbus._run.history import History
from hookbus._run.history_file import Row
from hookbus.metrics.logged import EVALUATIONS

if TYPE_CHECKING:
    from hookbus._run.run import Run
    from hookbus.metrics.results import Metrics

WINDOW = "history"
"""Window of the training metrics since the last row."""

SECONDS_DIGITS = 3


class HistoryRecorder:
    """Record the rows of the history of a run.

    Args:
        run: The run.
        history: Rows of the run that this run continues; without rows if there is none.

    Attributes:
        history: Rows of the run.
        write: Function that writes the last row; None without a file.
    """

    def __init__(self, run: Run, history: History) -> None:
        self._run, self.history = run, history
        self.write: Callable[[], object] | None = None
        self._is_started = self._is_epoch_pending = False

    def start(self, write: Callable[[], object] | None) -> None:
        """Record rows from now on.

        Args:
            write: Function that writes the last row to a file; None without a file.
        """
        run, self.write = self._run, write
        run.metrics.window(WINDOW)
        # Rates that change from step to step are read after the step: those of the step must be recorded.
        if run.schedulers or run.bus.hooks:
            run.track_learning_rates()
        self._is_started = True

    def end_epoch(self) -> None:
        """Note that an epoch is complete, whose row is recorded after its validation."""
        self._is_epoch_pending = self._is_started

    def record_epoch(self) -> None:
        """Record the row of a complete epoch, unless it is recorded. A collective call."""
        if self._is_epoch_pending:
            self._is_epoch_pending = False
            self._put("epoch", self._run.epoch_means())

    def record_results(self, kind: str, results: Mapping[str, float]) -> None:
        """Record the results of a validation or test of the training. A collective call.

        Args:
            kind: "val" or "test".
            results: Results by full name.
        """
        if not self._is_started or self._run.sanity_checking or kind not in ("val", "test"):
            return
        # The epoch that they belong to has a row of its own, with its means.
        means = {} if self._is_epoch_pending or self._has_row() else self._get_means()
        self._put(EVALUATIONS[kind], {**means, **results})

    def end_training(self) -> None:
        """Record the iterations after the last row, when the training ends without an error. A collective call."""
        if self._is_started:
            self.record_epoch()
            if not self._has_row() and (means := self._get_means()):
                self._put("end", means)

    # -- implementation ------------------------------------------------------------------------

    def _has_row(self) -> bool:
        """Return whether the last row is that of the current iteration."""
        return len(self.history) > 0 and self.history[-1]["iteration"] == self._run.iters_done

    def _get_means(self) -> Metrics:
        run = self._run
        return run.metrics.rank_means(run.metrics.window(WINDOW), run.ranks)

    def _put(self, kind: str, values: Mapping[str, float]) -> None:
        run = self._run
        position: Row = {"epoch": run.current("epoch"), "iteration": run.iters_done, "step": run.steps_done}
        row = {"kind": kind, **position, "seconds": round(run.seconds, SECONDS_DIGITS)}
        if run.counts_tokens:
            row["tokens"] = run.tokens_done
        if self._has_row() and kind != "epoch":
            row["kind"] = self.history[-1]["kind"]
        self.history._put({**row, **run.learning_rates(), **values})
        run.metrics.window(WINDOW).reset()
        if self.write is not None:
            self.write()
