"""Acquisition of directories for a run: search for a free work directory, lock, and removal of earlier runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

from hookbus._run.directory_lock import (
    LOCK,
    DirectoryLock,
    acquire_lock,
    can_lock_new_file,
    create_directory,
    get_write_error,
    not_writable_error,
)
from hookbus._run.recorded_run import (
    CONFIG,
    OUTPUTS,
    RecordedRun,
    contains_training_run,
    find_config_problem,
    remove_output,
)
from hookbus._run.status import DIRECTORY, ELSEWHERE, OUTPUTS_KEY, OVERWRITTEN, REMOVED, STATUS, StatusFile
from hookbus._run.work_dir import DIRECTORIES, WorkDir
from hookbus._utils.files import get_reason
from hookbus.checkpoint.atomic_files import remove, remove_orphaned_sidecars, remove_temporary_files, write_json
from hookbus.checkpoint.file_system import fsync, reset_warnings
from hookbus.checkpoint.generations import iter_generations
from hookbus.checkpoint.sidecars import written_by
from hookbus.errors import WorkDirError


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
    """Return the directory that `acquire` would lock, without locking it, and the error message if it would fail."""
    any_run = resume or overwrite
    target = next(candidate for candidate in _candidates(path) if any_run or not contains_training_run(candidate))
    reason = get_write_error(target)
    if reason:
        return target, str(not_writable_error(target, reason))
    recorded = RecordedRun.read(target)
    if recorded.problem or not writes_config:
        return target, recorded.problem
    return target, find_config_problem(target, recorded.outputs, {recorded.run})


def remove_run(directory: Path, recorded: RecordedRun) -> list[Path]:
    """Remove the files of a run. A removal that is interrupted is completed by the next run in the directory.

    Returns:
        Files in the directories of the run, and in the place of its outputs, that it did not write.

    Raises:
        OSError: If a file cannot be removed.
    """
    # In a copy without hidden files, `config.yaml` is not listed, and its first line identifies it.
    is_own_config = not find_config_problem(directory, recorded.outputs, {recorded.run})
    outputs = recorded.outputs | {CONFIG} if is_own_config else recorded.outputs
    if recorded.run:
        # The status is removed last: until then it states that the run must not be resumed, and lists its outputs.
        status = {"run": recorded.run, "outcome": REMOVED, OUTPUTS_KEY: sorted(recorded.outputs)}
        with suppress(OSError):  # no space on the disk, which the removal is to free
            write_json(directory / STATUS, {**recorded.status.fields, **status}, recorded.run)
    kept = [directory / name for name in sorted(outputs) if not remove_output(directory, name)]
    folders = [directory / name for name in DIRECTORIES.values() if _is_own_kind(directory / name)]
    for folder in folders:
        remove_run_files(folder, recorded.run)
        fsync(folder)
        with suppress(OSError):  # not empty: contains files that the run did not write
            folder.rmdir()
    (directory / OUTPUTS).unlink(missing_ok=True)
    fsync(directory)
    (directory / STATUS).unlink(missing_ok=True)
    return sorted({*kept, *(entry for folder in folders if folder.is_dir() for entry in folder.iterdir())})


def remove_run_files(directory: Path, run: str) -> None:
    """Remove the files of a run, according to their sidecars."""
    remove_temporary_files(directory, run)
    for file in directory.glob("[!.]*") if run else ():
        if written_by(file, run):
            remove(file)
    remove_orphaned_sidecars(directory, run)
    if run and any(iter_generations(directory)):
        from hookbus.checkpoint.store import CheckpointStore  # imports torch

        CheckpointStore(directory, run).remove_unreferenced()


def remove_leftovers(directory: Path, outputs: Iterable[str], runs: Iterable[str]) -> None:
    """Remove the temporary files of killed runs in every directory of a work directory in which runs write files."""
    folders = {directory, *_iter_folders(directory / name for name in {*DIRECTORIES.values(), *outputs})}
    folders |= {(directory / name).parent for name in outputs if _is_own_kind((directory / name).parent)}
    for folder in folders:
        for run in runs:
            remove_temporary_files(folder, run)


def remove_partial_files(directory: Path, runs: Iterable[str]) -> None:
    """Remove the partial files of killed runs in a directory outside the work directory, unless it is in use."""
    if not directory.is_dir():
        return
    with suppress(WorkDirError, OSError):  # a directory that is no longer writable concerns no later run
        lock = acquire_lock(directory, required=False)
        if lock is None:
            return
        try:
            for run in runs:
                remove_temporary_files(directory, run)
                remove_orphaned_sidecars(directory, run)
        finally:
            lock.release()


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
    raise not_writable_error(target, reason, operation="locked")


def _iter_folders(folders: Iterable[Path]) -> Iterator[Path]:
    """Yield directories and their subdirectories; links are not followed."""
    for folder in folders:
        if _is_own_kind(folder):
            yield from (Path(parent) for parent, _, _ in os.walk(folder))


def _is_own_kind(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()
