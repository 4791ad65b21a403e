"""The JSON lines hook: metrics, results, text and configuration of a run in one file."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hookbus import Run
from hookbus.checkpoint import schema
from hookbus.metrics import Metrics
from hookbus.writers import redact_config
from hookbus_logger.config import JsonlConfig
from hookbus_logger.epoch_recorder import STATE, get_epoch
from hookbus_logger.file_recorder import FileRecorder
from hookbus_logger.json_lines import JsonLines, LogPosition, Row
from hookbus_logger.rows import get_sort_key, to_json, to_scalar_fields
from hookbus_logger.run_log import POSITION_FIELDS, OpeningRows, open_log, truncate_log

_check_position = schema.record(
    {"moment": schema.any_value, "keys": schema.list_of(schema.any_value)},
    {"name": schema.string(), "first": schema.nullable(schema.string())},
)


class JsonlHook(FileRecorder):
    """Write training metrics, results and the output of other hooks to a file, one JSON object per line.

    A resumed run removes the rows written after its checkpoint and writes them again. A file that is not a log of the
    run is never changed.
    """

    Config = JsonlConfig
    config: JsonlConfig
    default_name = "metrics.jsonl"
    state_schema = schema.record({**STATE, "rows": schema.nullable(schema.integer())})

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self._log: JsonLines | None = None
        self._position: LogPosition | None = None
        self._opening: OpeningRows | None = None
        self._reported_problems: set[str] = set()
        self._pending_rows: deque[Row] = deque()

    # -- the file ------------------------------------------------------------------------------

    def cleanup(self) -> None:
        """Close the file, and warn if rows could not be written."""
        if self._log is not None:
            self._write_pending(self._log)
            self._log.close_moment()
            self._position = self._log.position
            self._log.close()
        self._end(len(self._pending_rows))
        self._pending_rows.clear()
        self._log, self._opening = None, None

    # -- rows ----------------------------------------------------------------------------------

    def write_record(self, run: Run, metrics: Metrics, step: int) -> None:
        """Write the mean metrics over an interval and the values of the optimizers."""
        values = {**metrics, **self.get_optimizer_values(run)}
        self._write_numbers(run, "train", values, step, metrics.nonfinite)

    def log_scalars(self, run: Run, values: Mapping[str, Any], step: int) -> None:
        """Write the results of a validation or test, or scalars logged by another hook or the training loop."""
        source = run.log_source(values)
        kind = "scalars" if source is None else source.stage
        # The means of training are those of the interval of this hook.
        if kind != "train":
            self._write_numbers(run, kind, values, step)

    def log_text(self, run: Run, tag: str, text: str, step: int) -> None:
        """Write a text logged by another hook."""
        self._write(run, "text", step, tag=tag, text=text)

    def log_config(self, run: Run, config: Any) -> None:
        """Write the configuration of the run, with secrets redacted."""
        self._write(run, "config", run.steps_done, config=to_json(redact_config(config)))

    # -- state ---------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the file, and the state of the recorder."""
        if self._log is not None:
            # A resume removes the rows after the position, which must include those whose write failed before.
            self._write_pending(self._log)
        position = self._position if self._log is None else self._log.position
        return {**super().state_dict(), **({"rows": None} if position is None else position._asdict())}

    def check_state(self, state: dict[str, Any]) -> None:
        """Raise if a state cannot be restored."""
        super().check_state(state)
        if state["rows"] is not None:
            _check_position(state, "state")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state returned by `state_dict()`."""
        super().load_state_dict(state)
        self._position = None
        if state["rows"] is not None:
            # Checkpoints of earlier versions contain neither the name nor the digest.
            name = Path(state.get("name", "")).name
            self._position = LogPosition(state["rows"], state["moment"], list(state["keys"]), name, state.get("first"))

    # -- internal ------------------------------------------------------------------------------

    def _reset_rows(self) -> None:
        """Discard the position of an earlier run."""
        self._position = None

    def _open(self, run: Run) -> None:
        """Open the file, and write the rows that were logged before; no effect if this was attempted before."""
        # A failed open is not retried during the run, as each row would report the same error.
        if self._was_opened or self._path is None:
            return
        self._was_opened = True
        log = open_log(run, self._path, self._position, self._get_current(run))
        if run.mode == "train" and run.resumed:
            truncate_log(run, log, self._position)
        self._log, self._current = log, (log.path, run.id)
        if run.mode == "train" and (run.resumed or run.iters_done):
            self._opening = OpeningRows(run, log)
        self._write_early_rows(run)

    def _write_early_rows(self, run: Run) -> None:
        """Write the rows that were logged before the file was open; a resumed run does not repeat them."""
        rows, self._early = self._early, []
        for row in rows:
            if self._opening is None:
                self._append(row)
            elif not self._opening.is_repeated(row):
                self._append({**row, **_get_current_position(run, run.steps_done)})

    def _write_numbers(
        self, run: Run, kind: str, values: Mapping[str, Any], step: int, counts: Mapping[str, int] | None = None
    ) -> None:
        fields, problems = to_scalar_fields(values, counts)
        for problem in set(problems) - self._reported_problems:
            run.logger.warning("%s: %s. The value is omitted from %s rows.", self.name, problem, kind)
        self._reported_problems.update(problems)
        self._write(run, kind, step, **fields)

    def _write(self, run: Run, kind: str, step: int, **fields: Any) -> None:
        self._begin(run)
        if run.sanity_checking or self._path is None:
            return
        position = _get_current_position(run, int(step))
        row = {"kind": kind, **position, "time": round(time.time(), 3), **fields}
        if run.resumed is None:
            self._early.append(row)
            return
        self._open(run)
        if self._opening is not None and not self._opening.is_at_start():
            self._opening = None
        if self._opening is None or not (self._opening.is_opening() and self._opening.is_repeated(row)):
            self._append(row)

    def _append(self, row: Row) -> None:
        if self._log is not None:
            self._pending_rows.append(row)
            self._write_pending(self._log)

    def _write_pending(self, file: JsonLines) -> None:
        """Write the buffered rows in order; after an error, the rest is retried with the next row."""
        while self._pending_rows:
            row = self._pending_rows[0]
            try:
                file.write(row, moment={name: row[name] for name in POSITION_FIELDS}, key=get_sort_key(row))
            except OSError as error:
                self._buffer(self._pending_rows, error)
                return
            self._pending_rows.popleft()


def _get_current_position(run: Run, step: int) -> Row:
    return dict(zip(POSITION_FIELDS, (run.mode, step, get_epoch(run), run.iters_done), strict=True))
