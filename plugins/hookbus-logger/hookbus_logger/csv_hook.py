"""The CSV hook: metrics and results of a run in a table, one row per step or epoch."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

from hookbus import Run
from hookbus.checkpoint import schema
from hookbus.metrics import Metrics
from hookbus_logger.config import CsvConfig
from hookbus_logger.csv_file import CsvFile, Row, escape
from hookbus_logger.csv_log import CsvPosition, open_csv
from hookbus_logger.epoch_recorder import STATE, get_epoch
from hookbus_logger.file_recorder import FileRecorder
from hookbus_logger.rows import to_number
from hookbus_logger.run_log import EPOCH_OPENING_POINTS, OPENING_POINTS

MAX_COLUMNS = 16_384
"""Maximum number of columns, that of a sheet in Excel; the values of further names are omitted."""
MAX_HELD_SHARE = 0.01
"""Number of rows that wait for a rewrite of the file because of a new name, as a fraction of the rows in the file."""

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
        self._file: CsvFile | None = None
        self._reported: set[str] = set()
        self._reset_rows()

    def _reset_rows(self) -> None:
        """Discard the rows and the position of an earlier run."""
        self._rows: deque[Row] = deque()  # the last one is the current row, the others are not written yet
        self._names: set[str] = set()  # names of the columns
        self._has_reported_limit = False
        self._key: RowKey | None = None
        self._is_written = False
        self._position: CsvPosition | None = None
        self._start: tuple[int, int] | None = None

    # -- the file ------------------------------------------------------------------------------

    def cleanup(self) -> None:
        """Close the file, and warn if rows could not be written."""
        if self._file is not None:
            self._write_rows(self._file)
            self._position = CsvPosition.read(self._file, self.config.separator)
            self._file.close()
        # The current row is in memory and in the file.
        self._end(len(self._rows) - self._is_written if self._file is not None else 0)
        self._file = None

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

    def _open(self, run: Run) -> None:
        """Open the file, and write the values that were logged before; no effect if this was attempted before."""
        # A failed open is not retried during the run, as each row would report the same error.
        if self._was_opened or self._path is None:
            return
        self._was_opened = True
        self._file = open_csv(run, self._path, self.config, self._position, self._get_current(run))
        self._current, self._names = (self._file.path, run.id), set(self._file.columns)
        early, self._early = self._early, []
        if run.mode == "train" and run.resumed and self._position is not None:
            self._start = run.epochs_done, run.iters_done
            self._write_rows(self._file)
        else:
            for key, row in early:
                self._append(run, key, row)

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
            self._append(run, key, row, is_due=is_due)

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

    def _append(self, run: Run, key: RowKey, row: Row, *, is_due: bool = True) -> None:
        if self._file is None:
            return
        if key != self._key:
            if self._is_written:
                self._rows.clear()
                self._file.start_row()
            self._rows.append({})
            self._key = key
        self._rows[-1].update(self._limit_names(run, row))
        self._is_written = False
        if is_due and not self._holds_rows(self._file):
            self._write_rows(self._file)

    def _limit_names(self, run: Run, row: Row) -> Row:
        """Return a row without the names for which there is no column left."""
        new = [name for name in row if escape(name) not in self._names]
        count = max(MAX_COLUMNS - len(self._names), 0)
        self._names.update(map(escape, new[:count]))
        if omitted := new[count:]:
            if not self._has_reported_limit:
                self._has_reported_limit = True
                message = "%s: the table has %s columns. Values of further names, such as %r, are omitted. Use `jsonl`."
                run.logger.warning(message, self.name, MAX_COLUMNS, omitted[0])
            return {name: value for name, value in row.items() if name not in set(omitted)}
        return row

    def _holds_rows(self, file: CsvFile) -> bool:
        """Return whether rows wait for each other, since a new name among them requires a rewrite of the file."""
        # The file is rewritten each time that it has grown by a fraction, and not with each row that has a new name.
        is_few = len(self._rows) <= MAX_HELD_SHARE * file.complete_rows
        return is_few and not all(map(file.has_columns, self._rows))

    def _write_rows(self, file: CsvFile) -> None:
        """Write the rows; after an error, they are retried with the next value."""
        if not self._rows or self._is_written:
            return
        try:
            file.write(*self._rows)
        except OSError as error:
            if self._buffer(self._rows, error):
                file.start_row()  # an earlier version of the first row may be in the file
            return
        self._rows = deque([self._rows[-1]])
        self._is_written = True
