"""Base class of the hooks that write a log file of their own, one for each run."""

from __future__ import annotations

import warnings
from collections import deque
from pathlib import Path
from typing import Any, ClassVar

from hookbus import Run
from hookbus.errors import HookWarning
from hookbus.writers import PlannedFile
from hookbus_logger.config import CsvConfig, JsonlConfig
from hookbus_logger.epoch_recorder import EpochRecorder
from hookbus_logger.paths import get_log_path, resolve_log_path

MAX_PENDING_ROWS = 1000
"""Maximum number of rows buffered while the file cannot be written; the oldest are dropped first."""


class FileRecorder(EpochRecorder):
    """Write a log file, which is opened once it is known whether the run resumes.

    Attributes:
        default_name: Name of the file in the log directory of the run if `path` is not set.
    """

    requires_work_dir = True
    config: JsonlConfig | CsvConfig
    default_name: ClassVar[str]

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self._file_run: Run | None = None
        self._path: Path | None = None
        self._current: tuple[Path, str] | None = None  # file and run of this process
        self._was_opened = False
        self._early: list[Any] = []  # rows that were logged before the file was open
        self._has_warned, self._dropped = False, 0

    @property
    def output_paths(self) -> dict[str, Path | None]:
        """Path of the file."""
        return {"path": self.config.path}

    def planned_files(self, run: Run) -> list[PlannedFile]:
        """Return the file, which is extended by each record."""
        return [PlannedFile(str(self.config.path or f"logs/{self.default_name}"), when="each record", appended=True)]

    def check(self, run: Run) -> None:
        """Check that no other hook writes the same file.

        Raises:
            ConfigError: If another hook has the same path, or a value of the optimizer cannot be logged.
        """
        super().check(run)
        self.check_unique(
            run,
            f"writes to {resolve_log_path(run, self.config.path, self.default_name)}",
            "Set another `path` for one of them.",
            setting="path",
            get_value=lambda hook: resolve_log_path(run, hook.config.path, self.default_name),
        )

    def before_run(self, run: Run, mode: str) -> None:
        """Determine the path of the file, which is opened once it is known whether the run resumes.

        Raises:
            HookError: If a validation or test has no work directory and `path` is not set.
        """
        super().before_run(run, mode)
        self._begin(run)

    def before_train(self, run: Run) -> None:
        """Open the file, and remove the rows written after the checkpoint of which the run resumes."""
        super().before_train(run)
        self._begin(run)
        self._open(run)

    def after_run(self, run: Run) -> None:
        """Write the rows of a run without training."""
        # A run that failed before its training must not change the log of the run that it would have resumed.
        if run.exception is None and self._early:
            self._open(run)

    # -- internal ------------------------------------------------------------------------------

    def _begin(self, run: Run) -> None:
        """Determine the path for a run, on its first event."""
        # `log_*` events may arrive before `before_run` of this hook.
        if self._file_run is not run:
            self.cleanup()
            self._file_run, self._path = run, None
            self._reset_rows()
            self._path = get_log_path(run, self.name, self.config.path, self.default_name)
            self._was_opened = False

    def _reset_rows(self) -> None:
        """Discard the rows and the position of an earlier run."""
        raise NotImplementedError

    def _open(self, run: Run) -> None:
        """Open the file, and write the values that were logged before; no effect if this was attempted before."""
        raise NotImplementedError

    def _get_current(self, run: Run) -> Path | None:
        """Return the file that this process has written for a run; None if there is none."""
        path, of_run = self._current or (None, "")
        return path if of_run == run.id else None

    def _buffer(self, rows: deque[Any], error: OSError) -> bool:
        """Warn once that rows cannot be written, drop the oldest ones beyond `MAX_PENDING_ROWS`, and return if any."""
        if not self._has_warned:
            self._has_warned = True
            message = (
                f"hook {self.name!r}: cannot write rows: {error}. Up to {MAX_PENDING_ROWS} rows are buffered until the "
                "file can be written."
            )
            warnings.warn(message, HookWarning, stacklevel=2)
        excess = max(len(rows) - MAX_PENDING_ROWS, 0)
        for _ in range(excess):
            rows.popleft()
        self._dropped += excess
        return excess > 0

    def _end(self, unwritten: int) -> None:
        """Warn if rows are lost, and discard the rows of the run.

        Args:
            unwritten: Number of buffered rows that could not be written.
        """
        if lost := self._dropped + unwritten:
            message = f"hook {self.name!r}: {lost} rows could not be written and are lost."
            warnings.warn(message, HookWarning, stacklevel=2)
        self._early.clear()
        self._was_opened = True
        self._has_warned, self._dropped = False, 0
