"""Work directory of a run: status file, configuration and registered outputs.

A file belongs to a run if it is a registered output, is inside a registered directory, or contains the ID of the run in
its name, its content or its sidecar. Every other file is foreign: it is neither modified nor removed, and a run that
needs its name raises an error.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hookbus._run.directory_lock import DirectoryLock, create_directory
from hookbus._run.recorded_run import (
    CONFIG,
    CONFIG_HEADER,
    RecordedRun,
    append_output,
    find_config_problem,
    is_replaceable,
    read_outputs,
    write_outputs,
)
from hookbus._run.status import CHECKPOINT, DIRECTORY, ELSEWHERE, OUTPUTS_KEY, OVERWRITTEN, STATUS, replace_status
from hookbus.checkpoint.atomic_files import atomic_write, write_json
from hookbus.errors import WorkDirError

DIRECTORIES = {"checkpoints_dir": "checkpoints", "logs_dir": "logs", "visualization_dir": "visualization"}
"""Subdirectories of the work directory, by the name of their service."""


class WorkDir:
    """Work directory of a run. Only the process that acquired it owns the lock; other ranks store the path.

    Attributes:
        path: Absolute path of the directory, which the current directory of later events does not change.
        requested_path: Requested directory if it already contained a run; otherwise None.
        kept_files: Files that `overwrite` did not remove because the removed run did not write them.
        removed_runs: IDs of the overwritten runs whose files in other directories may not have been removed yet.
        recorded_run: ID of the run that is resumed in the directory; "" for a new run and on other ranks.
        recorded_status: Status of the run that is resumed in the directory; empty for a new run and on other ranks.
    """

    def __init__(
        self,
        path: Path,
        lock: DirectoryLock | None = None,
        requested_path: Path | None = None,
        kept_files: Iterable[Path] = (),
        removed_runs: Iterable[str] = (),
        recorded: RecordedRun | None = None,
    ) -> None:
        self.path = path.absolute()
        self._acquired_path = path
        self.requested_path = requested_path
        self.kept_files = list(kept_files)
        self.removed_runs = tuple(removed_runs)
        recorded = recorded or RecordedRun(outputs=frozenset(read_outputs(path)))
        self.recorded_run = recorded.run
        self.recorded_status: Mapping[str, Any] = recorded.status.fields
        # A power failure may have prevented the creation of an output. A file that appears later is foreign.
        self._outputs = {name for name in recorded.outputs if os.path.lexists(path / name)}
        self._descriptions: dict[str, str] = {}
        self._listed: dict[Path, str] = {}
        self._lock = lock
        self._run = ""
        self._started = time.time()
        self._checkpoint: str | None = self.recorded_status.get(CHECKPOINT)
        self._elsewhere: list[str] = list(self.recorded_status.get(ELSEWHERE, ()))
        self._status: dict[str, Any] | None = None
        self._status_lock = threading.RLock()  # a save on another thread records its checkpoint

    def __reduce__(self) -> tuple[type[WorkDir], tuple[Path]]:
        # Rank 0 sends the object to the other ranks, without its lock. A relative path stays relative: another host may
        # have mounted the file system elsewhere.
        return WorkDir, (self._acquired_path,)

    def directory(self, name: str) -> Path:
        """Return a subdirectory, which is created on first use.

        Raises:
            WorkDirError: If it cannot be created, or if a file has its name.
        """
        return create_directory(self.path / name)

    def begin(self, run: str) -> None:
        """Record the run that uses the directory, before it creates temporary files. Only rank 0 does so."""
        if self._lock is None or run == self._run:
            return
        self._lock.record_runs([run])
        if not self._run and read_outputs(self.path) != self._outputs:
            write_outputs(self.path, self._outputs, run)
        self._run = run

    @property
    def outputs(self) -> dict[Path, str]:
        """Paths of the registered outputs, with the descriptions that were registered in this process.

        Paths that are only described follow.
        """
        inside = {self.path / name: self._descriptions.get(name, "") for name in sorted(self._outputs)}
        return inside | dict(sorted(self._listed.items()))

    def register_output(self, path: Path, description: str = "") -> bool:
        """Register a file or directory before a run creates it.

        Args:
            path: Path; one outside the work directory is only listed, with its description.
            description: Content of the file, for the list of files at the end of a run.

        Returns:
            Whether the path belongs to a run; False if it already exists and was not created by a run, is a link or a
            special file, or is outside.

        Raises:
            OSError: If the output cannot be recorded.
        """
        if (name := self._get_name(path)) is None:
            if description:
                self.describe_output(path, description)
            return False
        with self._status_lock:
            if name in self._outputs or not os.path.lexists(path):
                self._descriptions[name] = description or self._descriptions.get(name, "")
            if name in self._outputs:
                return is_replaceable(path)
            if os.path.lexists(path):
                return False
            # Before the file exists: a run that is killed in between leaves no file that `overwrite` cannot remove.
            append_output(self.path, name)
            self._outputs.add(name)
            self._rewrite_status()
        return True

    def describe_output(self, path: Path, description: str) -> None:
        """Describe a file in the list of files at the end of a run.

        Args:
            path: Path, which need not be in the work directory.
            description: Content of the file.
        """
        self._listed[path] = description

    def write_status(self, **fields: Any) -> None:
        """Write the state of the run, its newest checkpoint and its outputs to `status.json`."""
        with self._status_lock:
            self.begin(fields.get("run", ""))
            self._status = fields
            self._write_status(fields)

    def write_final_status(self, **fields: Any) -> str:
        """Write the state of a run that has ended, also if no space is available.

        Returns:
            Message that states what could not be written; "" if the file is complete.
        """
        try:
            self.write_status(**fields)
        except OSError as error:
            return replace_status(self.path / STATUS, self._describe_status(fields), error)
        return ""

    def record_checkpoint(self, path: Path) -> None:
        """Record in `status.json` that the run has committed a checkpoint.

        A run that is killed later is thus not mistaken for one that has no checkpoint to resume from. The file is
        written for the first checkpoint; the path of a later one is written with the next status.
        """
        with self._status_lock:
            is_first = self._checkpoint is None
            self._checkpoint = self._get_name(path) or str(path)
            if is_first:
                self._rewrite_status()

    def record_directory(self, path: Path) -> None:
        """Record in `status.json` a directory outside the work directory, before the run writes files in it."""
        with self._status_lock:
            # A name that is not valid UTF-8 cannot be stored in the file.
            if str(path) not in self._elsewhere and str(path).isprintable():
                self._elsewhere.append(str(path))
                self._rewrite_status()

    def _get_name(self, path: Path) -> str | None:
        """Return a path relative to the directory, which may be renamed or moved; None if it is outside."""
        path = path.absolute()
        return path.relative_to(self.path).as_posix() if path.is_relative_to(self.path) else None

    def _rewrite_status(self) -> None:
        """Write the last status again, with the current outputs and checkpoint."""
        if self._status is not None:
            with suppress(OSError):  # the checkpoint and the list of outputs are durable; the next status repeats them
                self._write_status(self._status)

    def _write_status(self, fields: Mapping[str, Any]) -> None:
        write_json(self.path / STATUS, self._describe_status(fields), fields.get("run", ""))

    def _describe_status(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return the content of `status.json`."""
        now = time.time()
        directory = str(self.path)
        # Other ranks register outputs in the list only. A name that is not valid UTF-8 cannot be stored in the file.
        outputs = sorted(name for name in self._outputs | read_outputs(self.path) if name.isprintable())
        removed = self.removed_runs if fields.get("outcome") == "running" else ()
        return {
            "run": fields.get("run", ""),  # first: it identifies the file also if the end is lost
            **fields,
            CHECKPOINT: self._checkpoint,
            OUTPUTS_KEY: outputs,
            **({ELSEWHERE: list(self._elsewhere)} if self._elsewhere else {}),
            **({OVERWRITTEN: list(removed)} if removed else {}),
            "started": _format_time(self._started),
            "updated": _format_time(now),
            "seconds": round(now - self._started, 3),
            "pid": os.getpid(),
            "host": socket.gethostname(),
            DIRECTORY: directory if directory.isprintable() else "",
        }

    def find_config_problem(self, run: str) -> str:
        """Return the error of a `config.yaml` that no run has written; "" if the file can be written."""
        return find_config_problem(self.path, self._outputs, {run, self.recorded_run} - {""})

    def write_config(self, text: str, run: str) -> None:
        """Write the resolved configuration of the run to `config.yaml`.

        Args:
            text: Content of the file.
            run: ID of the run, which the first line contains.

        Raises:
            WorkDirError: If a file of this name exists that no run has written.
            OSError: If the file cannot be written; an existing one is not modified.
        """
        if problem := self.find_config_problem(run):
            raise WorkDirError(problem)
        content = (CONFIG_HEADER.format(run) + text).encode()
        self.register_output(self.path / CONFIG, "all settings")
        atomic_write(self.path / CONFIG, lambda file: file.write(content), run=run)

    def release(self) -> None:
        """Release the lock of the directory. Idempotent."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def check_resume(name: str, value: object) -> str:
    """Check that a value is "auto", "never" or the path of a checkpoint, and return the error message, or ""."""
    is_valid = isinstance(value, (str, Path)) and str(value)
    return "" if is_valid else f"{name}: should be auto, never or the path of a checkpoint, got {value!r}."


def _format_time(seconds: float) -> str:
    """Return a time in ISO 8601 format, in the local time zone."""
    return time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(seconds))
