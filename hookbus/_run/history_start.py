"""Start of the history of a training: its rows up to the position of the run, and its file, which rank 0 writes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from hookbus._run.history import cut_rows
from hookbus._run.history_file import HISTORY, HistoryFile, Row, find_rows
from hookbus._run.recorded_run import RecordedRun
from hookbus._utils.files import get_reason
from hookbus.errors import format_path
from hookbus.writers.output_files import set_aside

if TYPE_CHECKING:
    from hookbus._run.run import Run


def start_history(run: Run, checkpoint: object) -> None:
    """Continue the history of a training that begins, at its position. A collective call.

    Args:
        run: The run.
        checkpoint: Path of the checkpoint that the run has resumed from; "never" if it has not.
    """
    files = None if run.work_dir is None else RunHistoryFile(run, run.work_dir.path / HISTORY)
    rows = run.ranks.call_on_main("the history", lambda: _open_rows(run, checkpoint, files))
    run.history._replace(rows or ())  # without a process group, other ranks receive nothing
    run.history_recorder.start(None if files is None or not run.ranks.is_main else files.write_last)


def _open_rows(run: Run, checkpoint: object, file: RunHistoryFile | None) -> list[Row]:
    """Return the rows up to the position of the run, which the file of the history then contains."""
    rows = run.history.rows
    if run.resumed:
        directories = [] if run.work_dir is None else [run.work_dir.path]
        if isinstance(checkpoint, (str, Path)):
            directories += [*Path(checkpoint).absolute().parents][:2]
        recorded, problems = find_rows(directories, lambda directory: RecordedRun.read(directory).run == run.id)
        rows = recorded or rows
        for problem in problems:
            run.logger.warning("%s", problem)
    kept = cut_rows(rows, run.iters_done, run.epochs_done)
    if file is not None:
        file.replace(kept)
    return kept


class RunHistoryFile:
    """File of the history of a run. One that cannot be written does not fail the run.

    Args:
        run: The run.
        path: Path of the file.
    """

    def __init__(self, run: Run, path: Path) -> None:
        self._run, self._path = run, path
        self._file: HistoryFile | None = None
        self._is_foreign = False

    def write_last(self) -> None:
        """Write the last row of the run."""
        try:
            if (file := self._get_file()) is not None:
                file.write(self._run.history._rows)
        except OSError as error:
            self._run.validations.warn_once(
                "%s cannot be written: %s. `run.history` is complete, and the next row writes the file again.",
                format_path(self._path),
                get_reason(error),
            )

    def replace(self, rows: list[Row]) -> None:
        """Replace the rows of an existing file; one that a run has written before a restart gets another name."""
        exists = os.path.lexists(self._path)
        try:
            if (exists or rows) and (file := self._get_file()) is not None:
                if exists and not self._run.iters_done:
                    set_aside(self._run, self._path)
                else:
                    file.write(rows)
        except OSError as error:
            self._run.logger.warning("%s cannot be written: %s.", format_path(self._path), get_reason(error))

    def _get_file(self) -> HistoryFile | None:
        """Return the file, which is registered before the first row; None if a foreign file has its name."""
        if self._file is None and not self._is_foreign:
            self._is_foreign = not self._run.register_output(self._path, "metrics of each epoch")
            if self._is_foreign:
                self._run.logger.warning(
                    "%s was not written by a run and is not changed; the history is not written.",
                    format_path(self._path),
                )
            else:
                self._file = HistoryFile(self._path, self._run.id)
        return self._file
