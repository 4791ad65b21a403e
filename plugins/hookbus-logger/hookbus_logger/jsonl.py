"""The JSON lines hook: everything that a run reports, in one file that any program can read."""

from __future__ import annotations

import math
import time
import warnings
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hookbus import Run
from hookbus.errors import HookError, HookWarning
from hookbus.metrics import Metrics
from hookbus.records.secrets import recordable
from hookbus_logger.config import JsonlConfig
from hookbus_logger.lines import JsonLines, Row
from hookbus_logger.records import RecordingHook, epoch_of
from hookbus_logger.rows import order_of, plain, scalars

__all__ = ["JsonlHook"]

MOST_WAITING = 1000
"""So many rows wait for a disk that is full; the oldest go first."""

PLACE = ("mode", "step", "epoch", "iteration")
"""The fields that say where a row belongs; rows that agree in them stand in the order of their kinds."""


class JsonlHook(RecordingHook):
    """Writes records of training, results, and what other hooks report, as one JSON object per line.

    A resumed run goes on where its checkpoint was taken: rows that came later are cut away, and come again.
    """

    Config = JsonlConfig
    needs_work_dir = True
    config: JsonlConfig

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self._file: JsonLines | None = None
        self._opened_for: Run | None = None
        self._is_own = False
        self._rows = self._rows_before = 0
        self._resumed_rows: int | None = None
        self._resumed_moment: tuple[object, list[Any]] = (None, [])
        self._reported: set[str] = set()
        self._unwritten: deque[tuple[Row, Row]] = deque()
        self._lost, self._was_told = 0, False

    # -- the file ------------------------------------------------------------------------------

    def before_run(self, run: Run, mode: str) -> None:
        """Open the file.

        Raises:
            HookError: there is nowhere to write.
        """
        super().before_run(run, mode)
        self._resumed_rows, self._resumed_moment = None, (None, [])
        self._open(run)

    def before_train(self, run: Run) -> None:
        """Cut away what a run before this one has written beyond the place from which this one goes on."""
        super().before_train(run)
        count, self._resumed_rows = self._resumed_rows, None
        if self._file is None or (count is None and not self._is_own):
            return
        moment, keys = self._resumed_moment
        whole, step, still = math.inf if count is None else count - len(keys), run.steps_done, list(keys)

        def wanted(number: int, row: Row) -> bool:
            if number >= self._rows_before or row.get("mode", "train") != "train":
                return True  # of others
            is_before = number < whole or (_place_of(row) == moment and _is_among(row, still))
            return is_before and row.get("step", 0) <= step

        self._file.keep(wanted)
        if keys and self._file.rows == count:
            self._file.reopen_moment(moment, keys)
        self._rows = self._file.rows

    def cleanup(self) -> None:
        """Close the file, and tell how many rows are missing."""
        if self._file is not None:
            self._write_waiting(self._file)
            self._file.close()
        if lost := self._lost + len(self._unwritten):
            warnings.warn(f"hook {self.name!r}: {lost} rows could not be written.", HookWarning, stacklevel=2)
        self._unwritten.clear()
        self._file, self._lost, self._was_told = None, 0, False

    # -- what is written -----------------------------------------------------------------------

    def write_record(self, run: Run, metrics: Metrics, step: int, rates: Mapping[str, float]) -> None:
        """Write the means over an interval, and the learning rates."""
        self._write_numbers(run, "train", {**metrics, **rates}, step, metrics.nonfinite)

    def after_val_epoch(self, run: Run, metrics: Metrics) -> None:
        """Write the results of a validation loader."""
        self._write_numbers(run, "val", metrics, run.steps_done)

    def after_test_epoch(self, run: Run, metrics: Metrics) -> None:
        """Write the results of a test loader."""
        self._write_numbers(run, "test", metrics, run.steps_done)

    def log_scalars(self, run: Run, values: Mapping[str, Any], step: int) -> None:
        """Write numbers that another hook, or the loop, reports."""
        self._write_numbers(run, "scalars", values, step)

    def log_text(self, run: Run, tag: str, text: str, step: int) -> None:
        """Write a text."""
        self._write(run, "text", step, tag=tag, text=text)

    def log_config(self, run: Run, config: Any) -> None:
        """Write the configuration."""
        self._write(run, "config", run.steps_done, config=plain(recordable(config)))

    # -- state ---------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """How many rows there are, and which of them more may come between, besides what decides on the next one."""
        moment, keys = (None, []) if self._file is None else self._file.moment()
        return {**super().state_dict(), "rows": self._rows, "moment": moment, "keys": keys}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        super().load_state_dict(state)
        self._rows = self._resumed_rows = state["rows"]
        self._resumed_moment = state["moment"], list(state["keys"])

    # -- inside --------------------------------------------------------------------------------

    def _open(self, run: Run) -> JsonLines | None:
        """The file of the run, opened when it is first needed; None if that has failed."""
        if self._opened_for is not run:
            self._opened_for = run
            self.cleanup()
            path = self._path(run)
            self._is_own = run.own(path)
            self._file = JsonLines(path)
            self._rows = self._rows_before = self._file.rows
        return self._file

    def _path(self, run: Run) -> Path:
        if self.config.path is not None:
            return self.config.path
        directory = run.get("logs_dir")
        if directory is None:
            raise HookError(
                "JSON lines are written into the work directory, and this run has none: give work_dir= to the run, or "
                "path= to this hook. Nothing is written."
            )
        return Path(directory) / "metrics.jsonl"

    def _write_numbers(
        self, run: Run, kind: str, values: Mapping[str, Any], step: int, counts: Mapping[str, int] | None = None
    ) -> None:
        fields, problems = scalars(values, counts)
        for problem in set(problems) - self._reported:
            run.logger.warning("%s: %s; it is left out of %s.", self.name, problem, kind)
        self._reported.update(problems)
        self._write(run, kind, step, **fields)

    def _write(self, run: Run, kind: str, step: int, **fields: Any) -> None:
        file = self._open(run)
        if file is None or run.sanity_checking:
            return
        place = dict(zip(PLACE, (run.mode, int(step), epoch_of(run), run.iters_done), strict=True))
        row = {"kind": kind, **place, "time": round(time.time(), 3), **fields}
        self._unwritten.append((row, place))
        self._write_waiting(file)

    def _write_waiting(self, file: JsonLines) -> None:
        """Write what waits, in order; what the disk does not take now is tried again with the next row."""
        while self._unwritten:
            row, place = self._unwritten[0]
            try:
                file.write(row, moment=place, key=order_of(row))
            except OSError as error:
                self._troubled(error)
                return
            self._rows = file.rows
            self._unwritten.popleft()

    def _troubled(self, error: OSError) -> None:
        """Say once that rows wait, and let only so many of them wait."""
        if not self._was_told:
            self._was_told = True
            message = f"hook {self.name!r}: {error}; rows wait until the file can be written, {MOST_WAITING} at most."
            warnings.warn(message, HookWarning, stacklevel=2)
        while len(self._unwritten) > MOST_WAITING:
            self._unwritten.popleft()
            self._lost += 1


def _place_of(row: Row) -> Row:
    return {name: row.get(name) for name in PLACE}


def _is_among(row: Row, keys: list[Any]) -> bool:
    """Whether a row has one of the keys, which then is taken away."""
    key = order_of(row)
    if key not in keys:
        return False
    keys.remove(key)
    return True
