"""Base class of the hooks that write a log file of their own, one for each run."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from hookbus import Run
from hookbus_logger.config import CsvConfig, JsonlConfig
from hookbus_logger.epoch_recorder import EpochRecorder
from hookbus_logger.paths import resolve_log_path

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

    @property
    def output_paths(self) -> dict[str, Path | None]:
        """Path of the file."""
        return {"path": self.config.path}

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

    def _begin(self, run: Run) -> None:
        """Determine the path for a run, on its first event."""
        raise NotImplementedError

    def _open(self, run: Run) -> None:
        """Open the file, and write the values that were logged before; no effect if this was attempted before."""
        raise NotImplementedError
