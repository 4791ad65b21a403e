"""The CSV hook: metrics and results of a run in a table, one row per step or epoch."""

from __future__ import annotations

import math
import warnings
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hookbus import Run
from hookbus.checkpoint import schema
from hookbus.errors import HookWarning
from hookbus.metrics import Metrics
from hookbus_logger.config import CsvConfig
from hookbus_logger.csv_file import CsvFile, Row
from hookbus_logger.csv_log import CsvPosition, open_csv
from hookbus_logger.epoch_recorder import STATE, get_epoch
from hookbus_logger.file_recorder import MAX_PENDING_ROWS, FileRecorder
from hookbus_logger.paths import get_log_path
from hookbus_logger.rows import to_number
from hookbus_logger.run_log import EPOCH_OPENING_POINTS, OPENING_POINTS

RowKey = tuple[str, int]
"""Mode of the run, and step or epoch of a row."""


class CsvHook(FileRecorder):
    """Write training metrics, results and scalars of other hooks to a CSV file, one row per step or epoch.

    The values of a step are in one row; with `logging_interval: epoch` those of an epoch, of which the last value of
    each name is kept. A resumed run removes the rows written after its checkpoint and writes them again.
    """

    Config = CsvConfig
    config: CsvConfig
    default_name = "metrics.csv"
    state_schema = schema.record(
        {
            **STATE,
            "rows": schema.list_of(schema.mapping_of(schema.number())),
            "key": schema.nullable(schema.tuple_of(schema.string(), schema.integer())),
            "position": schema.nullable(
                schema.record(
                    {
                        "name": schema.string(),
                        "rows": schema.integer(),
                        "columns": schema.integer(),
                        "first": schema.mapping_of(schema.string()),
                    }
                )
            ),
        }
    )

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self._file_run: Run | None = None
        self._path: Path | None = None
        self._file: CsvFile | None = None
        self._current: tuple[Path, str] | None = None  # file and run of this process
        self._was_opened = False
        self._early: list[tuple[RowKey, Row]] = []
        self._reported: set[str] = set()
        self._has_warned, self._dropped = False, 0
        self._reset_rows()

    def _reset_rows(self) -> None:
        self._rows: deque[Row] = deque()  # the last one is the current row, the others could not be written
        self._key: RowKey | None = None
        self._is_written = False
        self._position: CsvPosition | None = None
        self._start: tuple[int, int] | None = None

    # -- the file ------------------------------------------------------------------------------

    def after_run(self, run: Run) -> None:
        """Write the rows of a run without training."""
        # A run that failed before its training must not change the log of the run that it would have resumed.
        if run.exception is None and self._early:
            self._open(run)

    def cleanup(self) -> None:
        """Close the file, and warn if rows could not be written."""
        if self._file is not None:
            self._write_rows(self._file)
            self._position = CsvPosition.read(self._file, self.config.separator)
            self._file.close()
        # The current row is in memory and in the file.
        lost = self._dropped + (len(self._rows) - self._is_written if self._file is not None else 0)
        if lost:
            message = f"hook {self.name!r}: {lost} rows could not be written and are lost."
            warnings.warn(message, HookWarning, stacklevel=2)
        self._early.clear()
        self._file, self._was_opened = None, True
        self._has_warned, self._dropped = False, 0

    # -- rows ----------------------------------------------------------------------------------

    def write_record(self, run: Run, metrics: Metrics, step: int) -> None:
        """Add the mean metrics over an interval and the values of the optimizers."""
        self._add(run, {**metrics, **self.get_optimizer_values(run)}, step)

    def log_scalars(self, run: Run, values: Mapping[str, Any], step: int) -> None:
        """Add the results of a validation or test, or scalars logged by another hook or the training loop."""
        source = run.log_source(values)
        # The means of training are those of the interval of this hook.
        if source is None or source.stage != "train":
            # A hook may log scalars in each iteration, whose row per epoch is not written each time.
            self._add(run, values, step, is_due=source is not None or not self.logs_by_epoch)

    # -- state ---------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the file, the current row, and the state of the recorder."""
        if self._file is not None:
            self._write_rows(self._file)
            self._position = CsvPosition.read(self._file, self.config.separator)
        return {
            **super().state_dict(),
            "rows": [dict(row) for row in self._rows],
            "key": None if self._key is None else list(self._key),
            "position": None if self._position is None else self._position._asdict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state returned by `state_dict()`."""
        super().load_state_dict(state)
        self._rows = deque(dict(row) for row in state["rows"])
        self._key = None if state["key"] is None else (state["key"][0], state["key"][1])
        self._position = None if state["position"] is None else CsvPosition(**state["position"])

    # -- internal ------------------------------------------------------------------------------

    def _begin(self, run: Run) -> None:
        """Determine the path for a run, on its first event."""
        # `log_*` events may arrive before `before_run` of this hook.
        if self._file_run is not run:
            self.cleanup()
            self._file_run, self._path = run, None
            self._reset_rows()
            self._was_opened = False
            self._path = get_log_path(run, self.name, self.config.path, self.default_name)

    def _open(self, run: Run) -> None:
        """Open the file, and write the values that were logged before; no effect if this was attempted before."""
        # A failed open is not retried during the run, as each row would report the same error.
        if self._was_opened or self._path is None:
            return
        self._was_opened = True
        path, of_run = self._current or (None, "")
        self._file = open_csv(run, self._path, self.config, self._position, path if of_run == run.id else None)
        self._current = self._file.path, run.id
        early, self._early = self._early, []
        if run.mode == "train" and run.resumed and self._position is not None:
            self._start = run.epochs_done, run.iters_done
            self._write_rows(self._file)
        else:
            for key, row in early:
                self._append(key, row)

    def _add(self, run: Run, values: Mapping[str, Any], step: int, *, is_due: bool = True) -> None:
        """Add values to the row of their step or epoch, and write the row if it is due."""
        self._begin(run)
        if run.sanity_checking or self._path is None:
            return
        epoch = get_epoch(run)
        key = run.mode, epoch if self.logs_by_epoch else int(step)
        row = {**self._to_numbers(run, values), "epoch": epoch, "step": int(step)}
        if run.resumed is None:
            self._early.append((key, row))
            return
        self._open(run)
        if not self._is_repeated(run):
            self._append(key, row, is_due=is_due)

    def _is_repeated(self, run: Run) -> bool:
        """Return whether a resumed run repeats an event of its start, whose values are in the file already."""
        if self._start is None:
            return False
        if (run.epochs_done, run.iters_done) != self._start or run.mid_iteration:
            self._start = None
            return False
        is_within_epoch = run.epoch_open and run.iters_done > run.epoch_first_iter
        points = OPENING_POINTS | (EPOCH_OPENING_POINTS if is_within_epoch else set())
        return not points.isdisjoint(run.open_points)

    def _to_numbers(self, run: Run, values: Mapping[str, Any]) -> Row:
        numbers: Row = {}
        for name, value in values.items():
            try:
                number = to_number(value)
                math.isfinite(number)  # raises OverflowError for an int beyond the range of a float
                numbers[str(name)] = number
            except (TypeError, ValueError, RuntimeError, OverflowError):
                if name not in self._reported:
                    self._reported.add(name)
                    message = "%s: %r must be a single number, got %s. The value is omitted from the rows."
                    run.logger.warning(message, self.name, name, type(value).__name__)
        return numbers

    def _append(self, key: RowKey, row: Row, *, is_due: bool = True) -> None:
        if self._file is None:
            return
        if key != self._key:
            if self._is_written:
                self._rows.clear()
                self._file.start_row()
            self._rows.append({})
            self._key = key
        self._rows[-1].update(row)
        self._is_written = False
        if is_due:
            self._write_rows(self._file)

    def _write_rows(self, file: CsvFile) -> None:
        """Write the rows in order; after an error, the rest is retried with the next value."""
        while self._rows and not self._is_written:
            try:
                file.write(self._rows[0])
            except OSError as error:
                self._warn_write_error(file, error)
                return
            if len(self._rows) == 1:
                self._is_written = True
                return
            self._rows.popleft()
            file.start_row()

    def _warn_write_error(self, file: CsvFile, error: OSError) -> None:
        """Warn once about the error, and drop the oldest rows beyond `MAX_PENDING_ROWS`."""
        if not self._has_warned:
            self._has_warned = True
            message = (
                f"hook {self.name!r}: cannot write rows: {error}. Up to {MAX_PENDING_ROWS} rows are buffered until the "
                "file can be written."
            )
            warnings.warn(message, HookWarning, stacklevel=2)
        while len(self._rows) > MAX_PENDING_ROWS:
            self._rows.popleft()
            file.start_row()  # an earlier version of the row may be in the file
            self._dropped += 1
