"""The JSON lines hook: metrics, results, text and configuration of a run in one file."""

from __future__ import annotations

import math
import time
import warnings
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hookbus import Run
from hookbus.errors import ConfigError, HookError, HookWarning
from hookbus.metrics.results import Metrics
from hookbus.writers.redaction import redact_config
from hookbus_logger.config import JsonlConfig
from hookbus_logger.json_lines import JsonLines, Row
from hookbus_logger.metric_recorder import MetricRecorder, get_epoch
from hookbus_logger.rows import get_sort_key, to_json, to_scalar_fields

__all__ = ["JsonlHook"]

MAX_PENDING_ROWS = 1000
"""Maximum number of rows buffered while the file cannot be written; the oldest are dropped first."""

POSITION_FIELDS = ("mode", "step", "epoch", "iteration")
"""Fields that locate a row in the run; rows with equal values are sorted by kind."""


class JsonlHook(MetricRecorder):
    """Write training metrics, results and the output of other hooks to a file, one JSON object per line.

    A resumed run removes the rows written after its checkpoint and writes them again.
    """

    Config = JsonlConfig
    requires_work_dir = True
    config: JsonlConfig

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self._file: JsonLines | None = None
        self._file_run: Run | None = None
        self._may_truncate = False
        self._rows = self._rows_before = 0
        self._resumed_rows: int | None = None
        self._resumed_moment: tuple[object, list[Any]] = (None, [])
        self._reported_problems: set[str] = set()
        self._pending_rows: deque[tuple[Row, Row]] = deque()
        self._dropped_rows, self._has_warned = 0, False

    # -- the file ------------------------------------------------------------------------------

    def check(self, run: Run) -> None:
        """Check that no other hook writes the same file.

        Raises:
            ConfigError: If another hook has the same path.
        """
        own = _resolve_path(run, self.config)
        for other in self.find_others(run, JsonlHook).values():
            if own == _resolve_path(run, other.config):
                names = " and ".join(sorted(repr(hook.name) for hook in (self, other)))
                raise ConfigError(
                    [f"path: hooks {names} write the same file, got {own}. Set another `path` for one of them."]
                )

    def before_run(self, run: Run, mode: str) -> None:
        """Open the file.

        Raises:
            HookError: If the run has no work directory and `path` is not set.
        """
        super().before_run(run, mode)
        self._resumed_rows, self._resumed_moment = None, (None, [])
        self._open(run)

    def before_train(self, run: Run) -> None:
        """Remove the rows that a previous run wrote after the checkpoint from which this run resumes."""
        super().before_train(run)
        count, self._resumed_rows = self._resumed_rows, None
        # Without a row count in the checkpoint, only the run's own file may be truncated, by step.
        if self._file is None or (count is None and not self._may_truncate):
            return
        moment, keys = self._resumed_moment
        # The interrupted run may have inserted later rows between those of the checkpoint's moment, so these rows are
        # matched by key and not by number.
        complete, step, open_keys = math.inf if count is None else count - len(keys), run.steps_done, list(keys)

        def is_retained(number: int, row: Row) -> bool:
            if number >= self._rows_before or row.get("mode", "train") != "train":
                return True  # written by this run, or by a separate validation or test
            is_before = number < complete or (_get_position(row) == moment and _consume_key(row, open_keys))
            return is_before and row.get("step", 0) <= step

        self._file.filter_rows(is_retained)
        if keys and self._file.rows == count:
            self._file.reopen_moment(moment, keys)
        self._rows = self._file.rows

    def cleanup(self) -> None:
        """Close the file, and warn if rows could not be written."""
        if self._file is not None:
            self._write_pending(self._file)
            self._file.close()
        if lost := self._dropped_rows + len(self._pending_rows):
            warnings.warn(
                f"hook {self.name!r}: {lost} rows could not be written and are lost.", HookWarning, stacklevel=2
            )
        self._pending_rows.clear()
        self._file, self._dropped_rows, self._has_warned = None, 0, False

    # -- rows ----------------------------------------------------------------------------------

    def write_record(self, run: Run, metrics: Metrics, step: int, rates: Mapping[str, float]) -> None:
        """Write the mean metrics over an interval, the learning rates and the steps of named optimizers."""
        self._write_numbers(run, "train", {**metrics, **rates, **run.optimizer_steps()}, step, metrics.nonfinite)

    def after_val_epoch(self, run: Run, metrics: Metrics) -> None:
        """Write the metrics of a validation loader."""
        self._write_numbers(run, "val", metrics, run.steps_done)

    def after_test_epoch(self, run: Run, metrics: Metrics) -> None:
        """Write the metrics of a test loader."""
        self._write_numbers(run, "test", metrics, run.steps_done)

    def log_scalars(self, run: Run, values: Mapping[str, Any], step: int) -> None:
        """Write scalars logged by another hook or the training loop."""
        self._write_numbers(run, "scalars", values, step)

    def log_text(self, run: Run, tag: str, text: str, step: int) -> None:
        """Write a text logged by another hook."""
        self._write(run, "text", step, tag=tag, text=text)

    def log_config(self, run: Run, config: Any) -> None:
        """Write the configuration of the run, with secrets redacted."""
        self._write(run, "config", run.steps_done, config=to_json(redact_config(config)))

    # -- state ---------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the number of rows, the keys of the newest ones, and the state of the recorder."""
        moment, keys = (None, []) if self._file is None else self._file.moment()
        return {**super().state_dict(), "rows": self._rows, "moment": moment, "keys": keys}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state returned by `state_dict()`."""
        super().load_state_dict(state)
        self._rows = self._resumed_rows = state["rows"]
        self._resumed_moment = state["moment"], list(state["keys"])

    # -- internal ------------------------------------------------------------------------------

    def _open(self, run: Run) -> JsonLines | None:
        """Return the file of the run, opened on first use; None if it could not be opened."""
        # `log_*` events may arrive before `before_run` of this hook. A failed open is not retried during the run, as
        # each row would report the same error.
        if self._file_run is not run:
            self._file_run = run
            self.cleanup()
            path = _get_path(run, self.config)
            self._may_truncate = run.register_output(path)
            self._file = JsonLines(path)
            self._rows = self._rows_before = self._file.rows
        return self._file

    def _write_numbers(
        self, run: Run, kind: str, values: Mapping[str, Any], step: int, counts: Mapping[str, int] | None = None
    ) -> None:
        fields, problems = to_scalar_fields(values, counts)
        for problem in set(problems) - self._reported_problems:
            run.logger.warning("%s: %s. The value is omitted from %s rows.", self.name, problem, kind)
        self._reported_problems.update(problems)
        self._write(run, kind, step, **fields)

    def _write(self, run: Run, kind: str, step: int, **fields: Any) -> None:
        file = self._open(run)
        if file is None or run.sanity_checking:
            return
        position = dict(zip(POSITION_FIELDS, (run.mode, int(step), get_epoch(run), run.iters_done), strict=True))
        row = {"kind": kind, **position, "time": round(time.time(), 3), **fields}
        self._pending_rows.append((row, position))
        self._write_pending(file)

    def _write_pending(self, file: JsonLines) -> None:
        """Write the buffered rows in order; after an error, the rest is retried with the next row."""
        while self._pending_rows:
            row, position = self._pending_rows[0]
            try:
                file.write(row, moment=position, key=get_sort_key(row))
            except OSError as error:
                self._warn_write_error(error)
                return
            self._rows = file.rows
            self._pending_rows.popleft()

    def _warn_write_error(self, error: OSError) -> None:
        """Warn once about the error, and drop the oldest rows beyond `MAX_PENDING_ROWS`."""
        if not self._has_warned:
            self._has_warned = True
            message = (
                f"hook {self.name!r}: cannot write rows: {error}. Up to {MAX_PENDING_ROWS} rows are buffered until the "
                "file can be written."
            )
            warnings.warn(message, HookWarning, stacklevel=2)
        while len(self._pending_rows) > MAX_PENDING_ROWS:
            self._pending_rows.popleft()
            self._dropped_rows += 1


def _get_path(run: Run, config: JsonlConfig) -> Path:
    """Return the path of the file.

    Raises:
        HookError: If the run has no work directory and the configuration no path.
    """
    if config.path is not None:
        return config.path
    directory = run.get("logs_dir")
    if directory is None:
        raise HookError(
            "The run has no work directory for metrics.jsonl, so no rows are written. Set `work_dir` of the run or "
            "`path` of this hook."
        )
    return Path(directory) / "metrics.jsonl"


def _resolve_path(run: Run, config: JsonlConfig) -> Path:
    """Return the absolute path of the file for a comparison, also without a work directory."""
    has_path = config.path is not None or run.work_dir is not None
    return (_get_path(run, config) if has_path else Path("metrics.jsonl")).resolve()


def _get_position(row: Row) -> Row:
    return {name: row.get(name) for name in POSITION_FIELDS}


def _consume_key(row: Row, keys: list[Any]) -> bool:
    """Return whether the key of a row is in the list, and remove that key."""
    key = get_sort_key(row)
    if key not in keys:
        return False
    keys.remove(key)
    return True
