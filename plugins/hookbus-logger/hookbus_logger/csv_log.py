"""CSV log of a run: its file, and its position in a checkpoint."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from hookbus import Run
from hookbus.checkpoint import remove_temporary_files
from hookbus.errors import HookError
from hookbus.writers import is_plain_file, set_aside
from hookbus_logger.config import CsvConfig
from hookbus_logger.csv_file import CsvFile, iter_rows
from hookbus_logger.paths import find_log, register_new_log


class CsvPosition(NamedTuple):
    """Position in a CSV log at the time of a checkpoint.

    Attributes:
        name: Name of the file.
        rows: Number of rows before the current one.
        columns: Number of columns that these rows have.
        first: Cells of the first row by column, which identify the file.
    """

    name: str
    rows: int
    columns: int
    first: dict[str, str]

    @classmethod
    def read(cls, file: CsvFile, separator: str) -> CsvPosition:
        """Return the current position in a file."""
        first: dict[str, str] = {}
        with suppress(OSError):  # a file that was deleted; the next row reports it
            first = next(iter_rows(file.path, separator), {})
        return cls(file.path.name, file.complete_rows, file.complete_columns, first)

    def is_in(self, path: Path, separator: str) -> bool:
        """Return whether a file is the log of this position, according to its name and its first row."""
        if not self.first or path.name != self.name or not is_plain_file(path):
            return False
        first = next(iter_rows(path, separator), {})
        # A value that was logged after the checkpoint may be in the row as well.
        return self.first.items() <= first.items()


def open_csv(run: Run, path: Path, config: CsvConfig, position: CsvPosition | None, current: Path | None) -> CsvFile:
    """Open the log of a run, and remove the rows after the checkpoint of which a training resumes.

    The file is `path`; if a file that is not a log of the run has this name, another name, unless `append` is set.

    Args:
        run: Active run.
        path: Path of the file.
        config: Configuration of the hook.
        position: Position in the checkpoint; None if there is none.
        current: File that this process has written for the run; None if there is none.

    Raises:
        HookError: If an existing file to append to is not a CSV file.
        OSError: If the file cannot be opened.
    """
    log = _find_log(run, path, config, position, current)
    log = log or register_new_log(run, path, "set another `path`, or set `append`")
    is_listed = run.register_output(log, "metrics as CSV")
    is_position = position is not None and position.is_in(log, config.separator)
    # A run that starts at iteration 0 keeps the log of a training that was stopped before its first checkpoint.
    restarts = run.mode == "train" and not run.resumed and log != current and not config.append
    if restarts and is_plain_file(log) and any(iter_rows(log, config.separator)):
        set_aside(run, log)
    remove_temporary_files(log.parent, run.id)
    file = _open_file(run, log, config)
    if run.mode == "train" and run.resumed:
        if position is not None and is_position:
            file.truncate(position.rows, position.columns)
        elif is_listed and not config.append:
            file.remove_rows_after(run.steps_done)
    return file


def _open_file(run: Run, path: Path, config: CsvConfig) -> CsvFile:
    try:
        return CsvFile(path, config.separator, run.id, completes_line=config.append)
    except ValueError as error:
        raise HookError(f"{error} Move the file, or set another `path`.") from None


def _find_log(
    run: Run, path: Path, config: CsvConfig, position: CsvPosition | None, current: Path | None
) -> Path | None:
    """Return the existing file that the run continues; None if there is none."""
    if config.append:
        return path if os.path.lexists(path) else None
    name = "" if position is None else position.name
    return find_log(
        run, path, name, current, lambda file: position is not None and position.is_in(file, config.separator)
    )
