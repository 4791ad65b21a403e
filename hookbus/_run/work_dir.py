"""Work directory of a run: status file, configuration and registered outputs."""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from hookbus._run.directory_lock import (
    acquire_lock,
    get_reason,
    get_write_error,
    not_lockable_error,
    not_writable_error,
    release_lock,
    warn_if_unsupported,
)
from hookbus.checkpoint.atomic_files import (
    atomic_write,
    remove,
    remove_orphaned_sidecars,
    remove_temporary_files,
    write_json,
    written_by,
)
from hookbus.checkpoint.file_system import reset_warnings
from hookbus.checkpoint.generations import iter_generations
from hookbus.errors import WorkDirError

__all__ = [
    "CHECKPOINT",
    "STATUS",
    "WorkDir",
    "acquire",
    "contains_training_run",
    "lock_directory",
    "parse_resume",
    "preview",
    "read_status",
]

STATUS = "status.json"
CHECKPOINT = "checkpoint"
"""Key of `status.json`: path of the newest checkpoint that the run has committed; null before the first one.

The path is relative to the work directory if the file is inside it. Earlier versions did not write the key.
"""

CONFIG = "config.yaml"
OUTPUTS = ".made"
"""File that lists the outputs of runs in the work directory, one per line."""

DIRECTORIES = ("checkpoints", "logs", "visualization")

MAX_LOCKED_NEW_DIRECTORIES = 16
"""Number of newly created siblings that may turn out to be locked before the search for a free one fails."""


class WorkDir:
    """Work directory of a run. Only the process that acquired it owns the lock; other ranks store the path.

    Attributes:
        path: Path of the directory.
        requested_path: Requested directory if it already contained a run; otherwise None.
        kept_files: Files that `overwrite` did not remove because the removed run did not write them.
        removed_run: ID of the run that `overwrite` removed; "" if none was removed.
        recorded_status: Status of the run that is resumed in the directory; empty for a new run and on other ranks.
    """

    def __init__(
        self,
        path: Path,
        lock: int | None = None,
        requested_path: Path | None = None,
        kept_files: Iterable[Path] = (),
        removed_run: str = "",
        recorded_status: Mapping[str, Any] | None = None,
    ) -> None:
        self.path = path
        self.removed_run = removed_run
        self.requested_path = requested_path
        self.kept_files = list(kept_files)
        self._outputs = _read_outputs(path)
        self._lock = lock
        self._started = time.time()
        self.recorded_status: Mapping[str, Any] = recorded_status or {}
        self._checkpoint: str | None = self.recorded_status.get(CHECKPOINT)
        self._status: dict[str, Any] | None = None
        self._status_lock = threading.Lock()  # a save on another thread records its checkpoint

    def __reduce__(self) -> tuple[type[WorkDir], tuple[Path]]:
        # Rank 0 sends the object to the other ranks, without its lock.
        return WorkDir, (self.path,)

    def directory(self, name: str) -> Path:
        """Return a subdirectory, which is created on first use."""
        path = self.path / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def register_output(self, path: Path) -> bool:
        """Register a file or directory before a run creates it.

        Args:
            path: Path inside the work directory.

        Returns:
            Whether the path belongs to a run; False if it already exists and was not created by a run, or is outside.
        """
        path = path.absolute()
        if not path.is_relative_to(self.path.absolute()):
            return False
        name = path.relative_to(self.path.absolute()).as_posix()
        if name not in self._outputs:
            if path.exists() or path.is_symlink():
                return False
            # Before the file exists: a run that is killed in between leaves no file that `overwrite` cannot remove.
            with open(self.path / OUTPUTS, "a") as file:
                file.write(f"{json.dumps(name)}\n")
            self._outputs.add(name)
        return True

    @property
    def recorded_run(self) -> str:
        """ID of the run that is resumed in the directory; "" for a new run."""
        return _get_run_id(self.recorded_status)

    def write_status(self, **fields: Any) -> None:
        """Write the state of the run, and its newest checkpoint, to `status.json`."""
        with self._status_lock:
            self._status = fields
            self._write_status(fields)

    def record_checkpoint(self, path: Path) -> None:
        """Record in `status.json` that the run has committed a checkpoint.

        A run that is killed later is thus not mistaken for one that has no checkpoint to resume from. The file is
        written for the first checkpoint; the path of a later one is written with the next status.

        Args:
            path: Path of the checkpoint.
        """
        with self._status_lock:
            is_first = self._checkpoint is None
            inside = path.absolute().is_relative_to(self.path.absolute())
            # Relative to the work directory, which may be renamed or moved.
            self._checkpoint = path.absolute().relative_to(self.path.absolute()).as_posix() if inside else str(path)
            if is_first and self._status is not None:
                with suppress(OSError):  # the checkpoint is complete; the next status records it
                    self._write_status(self._status)

    def _write_status(self, fields: Mapping[str, Any]) -> None:
        now = time.time()
        host = {"pid": os.getpid(), "host": socket.gethostname()}
        times = {
            "started": _format_time(self._started),
            "updated": _format_time(now),
            "seconds": round(now - self._started, 3),
        }
        checkpoint = {CHECKPOINT: self._checkpoint}
        write_json(self.path / STATUS, {**fields, **checkpoint, **times, **host}, fields.get("run", ""))

    def write_config(self, text: str, run: str = "") -> None:
        """Write the resolved configuration of the run to `config.yaml`.

        Args:
            text: Content of the file.
            run: ID of the run.

        Raises:
            WorkDirError: If a file of this name exists that no run has written.
            OSError: If the file cannot be written; an existing one is not modified.
        """
        if not self.register_output(self.path / CONFIG):
            raise WorkDirError(
                f"{self.path / CONFIG} was not written by a run and would be overwritten. Move the file, or set "
                "another work_dir."
            )
        atomic_write(self.path / CONFIG, lambda file: file.write(text.encode()), run=run)

    def release(self) -> None:
        """Release the lock of the directory. Idempotent."""
        if self._lock is not None:
            release_lock(self._lock)
            self._lock = None


def parse_resume(resume: object) -> str | Path:
    """Validate the argument `resume`.

    Returns:
        "auto", "never" or the path of a checkpoint.

    Raises:
        ValueError: If `resume` is none of these.
    """
    if isinstance(resume, (str, Path)) and str(resume):
        return resume
    raise ValueError(f"should be auto, never or the path of a checkpoint, got {resume!r}.")


def acquire(path: Path, *, resume: bool = False, overwrite: bool = False) -> WorkDir:
    """Lock a work directory for a run.

    A directory that already contains a run is not overwritten by default: a new run uses the first free sibling
    (`runs/x-2`).

    Args:
        path: Requested directory; created if it is missing.
        resume: Whether to continue the run in the directory.
        overwrite: Whether to remove the run in the directory: the checkpoints that it wrote, according to their
            sidecars, and its registered outputs. Other files are not modified.

    Returns:
        The locked work directory.

    Raises:
        WorkDirError: If the directory cannot be written, or an active run uses it.
    """
    reset_warnings()
    target, lock = _lock_free_directory(path, any_run=resume or overwrite)
    status = read_status(target) if resume or overwrite else {}
    earlier = _get_run_id(status)
    removed = earlier if overwrite else ""
    kept_files = _remove_run(target, removed) if overwrite and (target / STATUS).exists() else []
    # Only with the lock: the temporary files of an active run must not be removed.
    for directory in (target, target / "checkpoints"):
        remove_temporary_files(directory, earlier)
    return WorkDir(target, lock, None if target == path else path, kept_files, removed, status if resume else None)


def lock_directory(directory: Path, run: str = "", removed: str = "", *, locked: bool = False) -> Callable[[], None]:
    """Lock a directory for the files of a run.

    Args:
        directory: Directory; created if it is missing.
        run: ID of the run, whose temporary files are removed.
        removed: ID of the run that is overwritten, whose files are removed.
        locked: Whether the lock of the work directory covers the directory.

    Returns:
        A function that releases the lock.

    Raises:
        WorkDirError: If the directory cannot be written, or an active run has locked it.
    """
    lock = None if locked else acquire_lock(directory, required=True, label="directory", setting="out_dir")
    if lock is not None:
        warn_if_unsupported(lock, directory)
    remove_temporary_files(directory, run)
    remove_orphaned_sidecars(directory, run)
    if removed:
        _remove_run_files(directory, removed)
    return partial(release_lock, lock) if lock is not None else lambda: None


def preview(path: Path, *, resume: bool = False, overwrite: bool = False) -> tuple[Path, str]:
    """Return the directory that `acquire` would lock, without locking it, and the error message if it would fail.

    Args:
        path: As in `acquire`.
        resume: As in `acquire`.
        overwrite: As in `acquire`.
    """
    any_run = resume or overwrite
    try:
        target = next(candidate for candidate in _candidates(path) if any_run or not (candidate / STATUS).exists())
    except OSError as error:
        return path, str(not_writable_error(path, get_reason(error)))
    reason = get_write_error(target)
    return target, str(not_writable_error(target, reason)) if reason else ""


def _candidates(path: Path) -> Iterator[Path]:
    """Yield the directory itself, then its siblings `x-2`, `x-3`, ... without end."""
    yield path
    named = path if path.name not in ("", "..") else path.resolve()  # `.` and `..` have no name to extend
    for number in count(2):
        yield named.with_name(f"{named.name}-{number}")


def _lock_free_directory(path: Path, *, any_run: bool) -> tuple[Path, int]:
    """Lock the first directory that can be used.

    Args:
        path: Directory to use.
        any_run: Whether a directory that contains a run can be used.

    Returns:
        The directory and the descriptor of its lock.

    Raises:
        WorkDirError: If no directory can be created or locked.
    """
    locked_new = 0
    for target in _candidates(path):
        is_new = not os.path.lexists(target)
        lock = acquire_lock(target, required=any_run)
        # Checked with the lock: a run that starts at the same time may have written its status in the meantime.
        if lock is not None and (any_run or not (target / STATUS).exists()):
            warn_if_unsupported(lock, target)
            return target, lock
        if lock is not None:
            release_lock(lock)
        elif is_new:
            # Another process may lock a new directory first, but not repeatedly.
            locked_new += 1
            if locked_new == MAX_LOCKED_NEW_DIRECTORIES:
                reason = f"the file system reports {locked_new} new directories as locked by other processes"
                raise not_lockable_error(path, reason, "work directory", "work_dir")
    raise AssertionError  # there are infinitely many candidates


def _remove_run(path: Path, run: str) -> list[Path]:
    """Remove the files of a run, and return the files in its directories that it did not write."""
    for name in (*_read_outputs(path), STATUS, OUTPUTS):
        _remove(path / name)
    directories = [path / name for name in DIRECTORIES if (path / name).is_dir() and not (path / name).is_symlink()]
    for directory in directories:
        _remove_run_files(directory, run)
        with suppress(OSError):  # not empty: contains files that the run did not write
            directory.rmdir()
    return [entry for directory in directories if directory.is_dir() for entry in sorted(directory.iterdir())]


def _remove_run_files(directory: Path, run: str) -> None:
    """Remove the files of a run, according to their sidecars."""
    remove_temporary_files(directory, run)
    for file in directory.glob("[!.]*"):
        if written_by(file, run):
            remove(file)
    remove_orphaned_sidecars(directory, run)
    if any(iter_generations(directory)):
        from hookbus.checkpoint.store import remove_unreferenced  # imports torch

        remove_unreferenced(directory, run)


def _remove(path: Path) -> None:
    """Remove a file, a link or a directory; a link to a directory is removed, not its target."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _read_outputs(path: Path) -> set[str]:
    """Return the registered outputs in a work directory. Invalid lines are ignored."""
    try:
        lines = (path / OUTPUTS).read_text().splitlines()
    except OSError:
        return set()
    return {name for line in lines if (name := _parse_output(path, line))}


def _parse_output(path: Path, line: str) -> str:
    """Return the output that a line lists; "" if the line is invalid or refers to a path outside the directory."""
    # Checked again: the file may have been edited, and `overwrite` removes what it lists.
    try:
        name: str = json.loads(line)
        inside = (path / name).parent.resolve().is_relative_to(path.resolve()) and Path(name).name not in ("", "..")
    except (OSError, TypeError, ValueError):
        return ""
    return name if inside else ""


def _format_time(seconds: float) -> str:
    """Return a time in ISO 8601 format, in the local time zone."""
    return time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(seconds))


def _get_run_id(status: Mapping[str, Any]) -> str:
    """Return the ID of the run that a status describes; "" if it has none."""
    run = status.get("run")
    return run if isinstance(run, str) and run.isalnum() else ""


def contains_training_run(path: Path) -> bool:
    """Return whether a work directory contains a training run, also if its `status.json` is invalid or missing."""
    # Validations and tests register outputs as well, but only a training run writes its configuration.
    return (path / STATUS).exists() or CONFIG in _read_outputs(path)


def read_status(path: Path) -> dict[str, Any]:
    """Return the content of `status.json` in a work directory; {} if it is missing or invalid."""
    try:
        return dict(json.loads((path / STATUS).read_text()))
    except (OSError, ValueError, TypeError):
        return {}
