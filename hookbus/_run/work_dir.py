"""Work directory of a run: acquisition, status file, configuration and registered outputs.

A file belongs to a run if it is a registered output, is inside a registered directory, or contains the ID of the run in
its name, its content or its sidecar. Every other file is foreign: it is neither modified nor removed, and a run that
needs its name raises an error.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from hookbus._run.directory_lock import (
    LOCK,
    DirectoryLock,
    acquire_lock,
    can_lock_new_file,
    create_directory,
    get_write_error,
    not_lockable_error,
    not_writable_error,
)
from hookbus._run.final_status import replace_status
from hookbus._run.outputs import append_output, is_replaceable, read_outputs, write_outputs
from hookbus._run.recorded_run import (
    CONFIG,
    RecordedRun,
    contains_training_run,
    find_config_problem,
    get_config_header,
)
from hookbus._run.run_removal import remove_leftovers, remove_partial_files, remove_run, remove_run_files
from hookbus._run.status import (
    CHECKPOINT,
    DIRECTORY,
    ELSEWHERE,
    OUTPUTS_KEY,
    OVERWRITTEN,
    STATUS,
    StatusFile,
    read_status,
)
from hookbus._utils.files import get_reason
from hookbus.checkpoint.atomic_files import atomic_write, remove_orphaned_sidecars, remove_temporary_files, write_json
from hookbus.checkpoint.file_system import reset_warnings
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


class WorkDir:
    """Work directory of a run. Only the process that acquired it owns the lock; other ranks store the path.

    Attributes:
        path: Path of the directory.
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
        self.path = path
        self.requested_path = requested_path
        self.kept_files = list(kept_files)
        self.removed_runs = tuple(removed_runs)
        self.recorded_run = recorded.run if recorded is not None else ""
        self.recorded_status: Mapping[str, Any] = recorded.status.fields if recorded is not None else {}
        listed = read_outputs(path) if recorded is None else recorded.outputs
        # A power failure may have prevented the creation of an output. A file that appears later is foreign.
        self._outputs = {name for name in listed if os.path.lexists(path / name)}
        self._lock = lock
        self._run = ""
        self._started = time.time()
        self._checkpoint: str | None = self.recorded_status.get(CHECKPOINT)
        self._elsewhere: list[str] = list(self.recorded_status.get(ELSEWHERE, ()))
        self._status: dict[str, Any] | None = None
        self._status_lock = threading.RLock()  # a save on another thread records its checkpoint

    def __reduce__(self) -> tuple[type[WorkDir], tuple[Path]]:
        # Rank 0 sends the object to the other ranks, without its lock.
        return WorkDir, (self.path,)

    def directory(self, name: str) -> Path:
        """Return a subdirectory, which is created on first use.

        Raises:
            WorkDirError: If it cannot be created, or if a file has its name.
        """
        path = self.path / name
        create_directory(path)
        return path

    def begin(self, run: str) -> None:
        """Record the run that uses the directory, before it creates temporary files. Only rank 0 does so.

        Args:
            run: ID of the run.
        """
        if self._lock is None or run == self._run:
            return
        self._lock.record_run(run)
        if not self._run and read_outputs(self.path) != self._outputs:
            write_outputs(self.path, self._outputs, run)
        self._run = run

    def register_output(self, path: Path) -> bool:
        """Register a file or directory before a run creates it.

        Args:
            path: Path inside the work directory.

        Returns:
            Whether the path belongs to a run; False if it already exists and was not created by a run, is a link or a
            special file, or is outside.

        Raises:
            OSError: If the output cannot be recorded.
        """
        path = path.absolute()
        if not path.is_relative_to(self.path.absolute()):
            return False
        name = path.relative_to(self.path.absolute()).as_posix()
        with self._status_lock:
            if name in self._outputs:
                return is_replaceable(path)
            if os.path.lexists(path):
                return False
            # Before the file exists: a run that is killed in between leaves no file that `overwrite` cannot remove.
            append_output(self.path, name)
            self._outputs.add(name)
            self._rewrite_status()
        return True

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

        Args:
            path: Path of the checkpoint.
        """
        with self._status_lock:
            is_first = self._checkpoint is None
            inside = path.absolute().is_relative_to(self.path.absolute())
            # Relative to the work directory, which may be renamed or moved.
            self._checkpoint = path.absolute().relative_to(self.path.absolute()).as_posix() if inside else str(path)
            if is_first:
                self._rewrite_status()

    def record_directory(self, path: Path) -> None:
        """Record in `status.json` a directory outside the work directory, before the run writes files in it.

        Args:
            path: Absolute path of the directory.
        """
        with self._status_lock:
            # A name that is not valid UTF-8 cannot be stored in the file.
            if str(path) not in self._elsewhere and str(path).isprintable():
                self._elsewhere.append(str(path))
                self._rewrite_status()

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
        directory = str(self.path.absolute())
        host = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            DIRECTORY: directory if directory.isprintable() else "",
        }
        times = {
            "started": _format_time(self._started),
            "updated": _format_time(now),
            "seconds": round(now - self._started, 3),
        }
        # Other ranks register outputs in the list only. A name that is not valid UTF-8 cannot be stored in the file.
        outputs = sorted(name for name in self._outputs | read_outputs(self.path) if name.isprintable())
        files: dict[str, Any] = {CHECKPOINT: self._checkpoint, OUTPUTS_KEY: outputs}
        if self._elsewhere:
            files[ELSEWHERE] = list(self._elsewhere)
        if self.removed_runs and fields.get("outcome") == "running":
            files[OVERWRITTEN] = list(self.removed_runs)
        # The ID comes first: it identifies the file also if the end is lost.
        return {"run": fields.get("run", ""), **fields, **files, **times, **host}

    def find_config_problem(self, run: str) -> str:
        """Return the error of a `config.yaml` that no run has written; "" if the file can be written.

        Args:
            run: ID of the run that writes the file.
        """
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
        content = f"{get_config_header(run)}{text}".encode()
        self.register_output(self.path / CONFIG)
        atomic_write(self.path / CONFIG, lambda file: file.write(content), run=run)

    def release(self) -> None:
        """Release the lock of the directory. Idempotent."""
        if self._lock is not None:
            self._lock.release()
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
    (`runs/x-2`). An interrupted removal of a run is completed.

    Args:
        path: Requested directory; created if it is missing.
        resume: Whether to continue the run in the directory.
        overwrite: Whether to remove the run in the directory: the checkpoints that it wrote, according to their
            sidecars, and its registered outputs. Other files are not modified.

    Returns:
        The locked work directory.

    Raises:
        WorkDirError: If the directory cannot be written, an active run uses it, or a foreign file has a name that the
            run needs.
    """
    reset_warnings()
    target, lock = _lock_free_directory(path, any_run=resume or overwrite)
    try:
        recorded = RecordedRun.read(target)
        if recorded.problem:
            raise WorkDirError(recorded.problem)
        overwritten = tuple(recorded.status.fields.get(OVERWRITTEN, ()))
        runs = {*lock.runs, *overwritten, recorded.run} - {""}
        kept: list[Path] = []
        # Before the status of a removed run, which lists these directories, is removed.
        for elsewhere in recorded.status.fields.get(ELSEWHERE, ()):
            remove_partial_files(Path(elsewhere), runs)
        if recorded.status.is_removed or (overwrite and recorded.is_training):
            if CONFIG in recorded.outputs and (problem := find_config_problem(target, recorded.outputs, runs)):
                raise WorkDirError(problem)
            kept = remove_run(target, recorded)
            overwritten, recorded = (*_get_unique_run(target, recorded), *overwritten), RecordedRun()
        # Only with the lock: the temporary files of an active run must not be removed.
        remove_leftovers(target, recorded.outputs, runs)
    except OSError as error:
        lock.release()
        raise not_writable_error(target, get_reason(error)) from error
    except BaseException:
        lock.release()
        raise
    requested = None if target == path else path
    removed = dict.fromkeys(run for run in overwritten if run)
    return WorkDir(
        target, lock, requested, kept, removed, recorded if resume else RecordedRun(outputs=recorded.outputs)
    )


def lock_directory(
    directory: Path, run: str = "", removed: Iterable[str] = (), *, locked: bool = False
) -> Callable[[], None]:
    """Lock a directory for the files of a run.

    Args:
        directory: Directory; created if it is missing.
        run: ID of the run, whose temporary files are removed. Those of other runs are kept.
        removed: IDs of the runs that are overwritten, whose files are removed.
        locked: Whether the lock of the work directory covers the directory.

    Returns:
        A function that releases the lock.

    Raises:
        WorkDirError: If the directory cannot be written, or an active run has locked it.
    """
    if locked:
        create_directory(directory)
    lock = None if locked else acquire_lock(directory, required=True, label="directory", setting="out_dir")
    if lock is not None:
        lock.warn_if_unsupported(directory)
    remove_temporary_files(directory, run)
    remove_orphaned_sidecars(directory, run)
    for overwritten in removed:
        remove_run_files(directory, overwritten)
    return lock.release if lock is not None else lambda: None


def preview(
    path: Path, *, resume: bool = False, overwrite: bool = False, writes_config: bool = False
) -> tuple[Path, str]:
    """Return the directory that `acquire` would lock, without locking it, and the error message if it would fail.

    Args:
        path: As in `acquire`.
        resume: As in `acquire`.
        overwrite: As in `acquire`.
        writes_config: Whether the run writes its configuration to `config.yaml`.
    """
    any_run = resume or overwrite
    target = next(candidate for candidate in _candidates(path) if any_run or not contains_training_run(candidate))
    reason = get_write_error(target)
    if reason:
        return target, str(not_writable_error(target, reason))
    recorded = RecordedRun.read(target)
    if recorded.problem or not writes_config:
        return target, recorded.problem
    return target, find_config_problem(target, recorded.outputs, {recorded.run})


def _get_unique_run(target: Path, recorded: RecordedRun) -> tuple[str, ...]:
    """Return the ID of an overwritten run, () if the directory is a copy whose original still contains the run.

    The files of the run in other directories, such as an `out_dir`, then belong to the original.
    """
    original = Path(recorded.status.fields.get(DIRECTORY) or target)
    is_copy = StatusFile.read(original).run == recorded.run and not original.samefile(target)
    return () if is_copy else (recorded.run,)


def _candidates(path: Path) -> Iterator[Path]:
    """Yield the directory itself, then its siblings `x-2`, `x-3`, ... without end."""
    yield path
    named = path if path.name not in ("", "..") else path.resolve()  # `.` and `..` have no name to extend
    for number in count(2):
        yield named.with_name(f"{named.name}-{number}")


def _lock_free_directory(path: Path, *, any_run: bool) -> tuple[Path, DirectoryLock]:
    """Lock the first directory that can be used.

    Args:
        path: Directory to use.
        any_run: Whether a directory that contains a run can be used.

    Returns:
        The directory and its lock.

    Raises:
        WorkDirError: If no directory can be created or locked, or a foreign file has a name that a run needs.
    """
    for target in _candidates(path):
        recorded = RecordedRun.read(target)
        if recorded.is_training and not any_run:
            continue
        # Before a lock file is created: nothing is written to a directory that is refused.
        if recorded.problem:
            raise WorkDirError(recorded.problem)
        is_new = not os.path.lexists(target)
        lock = acquire_lock(target, required=any_run)
        if lock is None:
            _check_new_directory(target, is_new=is_new)
            continue
        # Checked with the lock: a run that starts at the same time may have written its status in the meantime.
        if any_run or not contains_training_run(target):
            lock.warn_if_unsupported(target)
            return target, lock
        lock.release()
    raise AssertionError  # there are infinitely many candidates


def _check_new_directory(target: Path, *, is_new: bool) -> None:
    """Raise if the file system reports every file as locked, also one that no other process can have locked."""
    if not is_new or can_lock_new_file(target):
        return
    with suppress(OSError):
        (target / LOCK).unlink()
        target.rmdir()
    reason = "the file system reports a new file as locked by another process"
    raise not_lockable_error(target, reason, "work directory", "work_dir")


def _format_time(seconds: float) -> str:
    """Return a time in ISO 8601 format, in the local time zone."""
    return time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(seconds))
