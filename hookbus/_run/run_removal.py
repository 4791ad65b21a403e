"""Removal of the files of runs: those of an overwritten run, and the temporary files of killed processes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from hookbus._run.directory_lock import acquire_lock
from hookbus._run.outputs import OUTPUTS, remove_output
from hookbus._run.recorded_run import CONFIG, RecordedRun, find_config_problem
from hookbus._run.status import OUTPUTS_KEY, REMOVED, STATUS
from hookbus.checkpoint.atomic_files import remove, remove_orphaned_sidecars, remove_temporary_files, write_json
from hookbus.checkpoint.file_system import fsync
from hookbus.checkpoint.generations import iter_generations
from hookbus.checkpoint.sidecars import written_by
from hookbus.errors import WorkDirError

DIRECTORIES = ("checkpoints", "logs", "visualization")


def remove_run(directory: Path, recorded: RecordedRun) -> list[Path]:
    """Remove the files of a run. A removal that is interrupted is completed by the next run in the directory.

    Args:
        directory: Work directory, which is locked.
        recorded: Run in the directory.

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
    folders = [directory / name for name in DIRECTORIES if _is_own_kind(directory / name)]
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
        from hookbus.checkpoint.store import remove_unreferenced  # imports torch

        remove_unreferenced(directory, run)


def remove_leftovers(directory: Path, outputs: Iterable[str], runs: Iterable[str]) -> None:
    """Remove the temporary files of killed runs in every directory of a work directory in which runs write files.

    Args:
        directory: Work directory, which is locked.
        outputs: Registered outputs.
        runs: IDs of the runs.
    """
    folders = {directory, *_iter_folders(directory / name for name in {*DIRECTORIES, *outputs})}
    folders |= {(directory / name).parent for name in outputs if _is_own_kind((directory / name).parent)}
    for folder in folders:
        for run in runs:
            remove_temporary_files(folder, run)


def remove_partial_files(directory: Path, runs: Iterable[str]) -> None:
    """Remove the partial files of killed runs in a directory outside the work directory, unless it is in use.

    Args:
        directory: Directory in which the runs wrote files. It is not created.
        runs: IDs of the runs.
    """
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


def _iter_folders(folders: Iterable[Path]) -> Iterator[Path]:
    """Yield directories and their subdirectories; links are not followed."""
    for folder in folders:
        if _is_own_kind(folder):
            yield from (Path(parent) for parent, _, _ in os.walk(folder))


def _is_own_kind(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()
