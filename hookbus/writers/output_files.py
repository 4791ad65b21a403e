"""Files and directories of the output of hooks, which never replace or change those of others.

A file or directory belongs to a run if the run has registered it in its work directory, or if the directory contains
the ID of the run in a marker file. Everything else is foreign: a run that needs its name uses another one.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import IO, TYPE_CHECKING

from hookbus._utils.files import read_regular_file
from hookbus._utils.paths import format_path
from hookbus.checkpoint.atomic_files import atomic_write, remove_temporary_files
from hookbus.checkpoint.file_system import fsync_file

if TYPE_CHECKING:
    from hookbus._run.run import Run

__all__ = [
    "MARKER",
    "claim_directory",
    "create_output",
    "is_plain_file",
    "iter_names",
    "owns_directory",
    "register_directory",
    "set_aside",
    "write_output",
]

MARKER = ".hookbus-run"
"""File that contains the ID of the run that created a directory outside its work directory."""

MAX_MARKER_BYTES = 200


def iter_names(path: Path) -> Iterator[Path]:
    """Yield a path, and then the path with a number appended to its stem: `x.png`, `x-2.png`, `x-3.png`, ..."""
    yield path
    for number in count(2):
        yield path.with_name(f"{path.stem}-{number}{path.suffix}")


def is_plain_file(path: Path) -> bool:
    """Return whether a path is a regular file; False for a symbolic link and for a missing file."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except (OSError, ValueError):
        return False


def owns_directory(run: Run, directory: Path) -> bool:
    """Return whether a directory belongs to a run, or does not exist; a missing one is registered or marked.

    Args:
        run: Active run.
        directory: Directory; one outside the work directory is created and marked if it is missing or empty.
    """
    if run.register_output(directory):
        return directory.is_dir() or not os.path.lexists(directory)
    return _is_marked(run, directory) or (_is_outside(run, directory) and _mark(run, directory))


def register_directory(run: Run, directory: Path) -> Path:
    """Return a directory in the work directory that belongs to the run: `directory`, or a numbered sibling.

    Args:
        run: Active run with a work directory.
        directory: Requested directory. One that no run has created is not used.
    """
    own = next(name for name in iter_names(directory) if run.register_output(name) and not name.is_symlink())
    if own != directory:
        run.logger.warning(
            "%s was not created by a run and is not changed; %s is used instead.", format_path(directory), own.name
        )
    return own


def claim_directory(run: Run, directory: Path, is_foreign: Callable[[Path], bool]) -> Path:
    """Return a directory for the files of a run: `directory`, or a subdirectory `run-2`, `run-3`, ... of it.

    Args:
        run: Active run.
        directory: Requested directory.
        is_foreign: Whether a directory that does not belong to the run contains files of the same type.

    Raises:
        OSError: If no directory can be created.
    """
    for candidate in _iter_directories(directory):
        if owns_directory(run, candidate):
            return candidate
        if candidate.is_dir() and not os.path.lexists(candidate / MARKER) and not is_foreign(candidate):
            _write_marker(run, candidate)
            return candidate
    raise AssertionError  # there are infinitely many candidates


def write_output(run: Run, path: Path, write: Callable[[IO[bytes]], object], *, owned: bool) -> Path:
    """Write a file atomically. A file that does not belong to the run is not replaced; another name is used instead.

    Args:
        run: Active run.
        path: Path of the file.
        write: Called with a binary file to write to.
        owned: Whether the run owns the directory, so that a regular file in it is one of its own.

    Returns:
        Path of the written file.

    Raises:
        OSError: If the file cannot be written.
    """
    return create_output(run, path, lambda target: atomic_write(target, write, run=run.id), owned=owned)


def create_output(run: Run, path: Path, create: Callable[[Path], object], *, owned: bool) -> Path:
    """Call a function with the path of a file that the run may create or replace.

    Args:
        run: Active run.
        path: Requested path.
        create: Creates or replaces the file, atomically.
        owned: As in `write_output`.

    Returns:
        Path of the file.
    """
    own = next(name for name in iter_names(path) if not os.path.lexists(name) or (owned and is_plain_file(name)))
    if own != path:
        run.logger.warning(
            "%s already exists and was not written by this run, so %s is written.", format_path(path), own.name
        )
    create(own)
    return own


def set_aside(run: Run, path: Path) -> Path:
    """Rename a file or directory of a run that starts again from iteration 0 to `<stem>-old`, and return the new path.

    Raises:
        OSError: If it cannot be renamed.
    """
    names = iter_names(path.with_name(f"{path.stem}-old{path.suffix}"))
    target = next(name for name in names if not os.path.lexists(name))
    run.register_output(target)
    os.rename(path, target)
    run.logger.info("%s was written before the restart and is kept as %s.", format_path(path), target.name)
    return target


def _iter_directories(directory: Path) -> Iterator[Path]:
    yield directory
    for number in count(2):
        yield directory / f"run-{number}"


def _is_outside(run: Run, directory: Path) -> bool:
    return run.work_dir is None or not directory.absolute().is_relative_to(run.work_dir.path.absolute())


def _is_marked(run: Run, directory: Path) -> bool:
    """Return whether a directory contains the marker of a run; the temporary files of that run are then removed."""
    try:
        marked = read_regular_file(directory / MARKER, MAX_MARKER_BYTES) == _get_mark(run)
    except OSError:
        return False
    if marked:
        remove_temporary_files(directory, run.id)
    return marked


def _mark(run: Run, directory: Path) -> bool:
    """Create a directory, and mark it if it is empty; return whether it belongs to the run."""
    if os.path.lexists(directory) and not directory.is_dir():
        return False
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        return False
    return _write_marker(run, directory)


def _write_marker(run: Run, directory: Path) -> bool:
    """Mark a directory as that of a run, unless another run has marked it; return whether it belongs to the run."""
    with suppress(FileExistsError), open(directory / MARKER, "xb") as file:
        file.write(_get_mark(run))
        file.flush()
        fsync_file(file.fileno(), directory / MARKER)
    return _is_marked(run, directory)


def _get_mark(run: Run) -> bytes:
    return f"run: {run.id}\n".encode()
