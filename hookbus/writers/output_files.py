"""Paths, files and directories of the output of hooks, which never replace or change those of others.

A file or directory belongs to a run if the run has registered it in its work directory, or if the directory contains
the ID of the run in a marker file. Everything else is foreign: a run that needs its name uses another one.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain, count
from pathlib import Path
from typing import IO, TYPE_CHECKING

from hookbus._utils.files import find_path_problem, read_regular_file
from hookbus.checkpoint.atomic_files import atomic_write, commit_file, make_temporary_name, remove_temporary_files
from hookbus.checkpoint.file_system import fsync_file
from hookbus.distributed.process_group import is_main
from hookbus.errors import ConfigError, format_path

if TYPE_CHECKING:
    from hookbus._run.run import Run


MARKER = ".hookbus-run"
"""File that contains the ID of the run that created a directory outside its work directory."""

MAX_MARKER_BYTES = 200


class OutputFiles:
    """Files of a run in one directory. Those that do not belong to the run are not replaced.

    Created before the first iteration, before which no rank writes: the temporary files of killed processes of the run
    are removed.

    Args:
        run: Active run.
        directory: Directory of the files, created with the first one. If the run creates it, all regular files in it
            belong to the run; otherwise those that the run has registered in its work directory.
        description: Content of the files, for the list of files at the end of a run. Default: none.
    """

    def __init__(self, run: Run, directory: Path, description: str = "") -> None:
        self.directory, self._run, self._description = directory, run, description
        self._owned: bool | None = None
        if is_main():
            remove_temporary_files(directory, run.id)

    def choose(self, path: Path) -> Path:
        """Return the path of a file that the run may create or replace: `path`, or a numbered name with a warning.

        Args:
            path: Path in the directory.
        """
        if self._owned is None:
            # Not before the first file: a run that resumes from a file knows its ID only after `before_run`.
            self._owned = owns_directory(self._run, self.directory, self._description)
        own = next(filter(self._may_replace, iter_numbered_paths(path)))
        if own != path:
            self._run.logger.warning(
                "%s already exists and was not written by this run, so %s is written.", format_path(path), own.name
            )
        return own

    def write(self, name: str, write: Callable[[IO[bytes]], object]) -> Path:
        """Write a file atomically, and return its path.

        Args:
            name: Name of the file.
            write: Called with a binary file to write to.

        Raises:
            OSError: If the file cannot be written.
        """
        path = self.choose(self.directory / name)
        atomic_write(path, write, run=self._run.id)
        return path

    def create(self, name: str, create: Callable[[Path], object]) -> Path:
        """Create a file by a function that takes a path, and return the path of the file.

        Args:
            name: Name of the file.
            create: Called with a temporary path with the same name.

        Raises:
            OSError: If the file cannot be created.
        """
        with self.temporary(name) as temporary:
            create(temporary)
            path = self.choose(self.directory / name)
            commit_file(temporary, path)
        return path

    @contextmanager
    def temporary(self, name: str) -> Iterator[Path]:
        """Yield a path in a temporary directory, which is removed on exit, or by the next process of the run.

        Args:
            name: Name of the file.
        """
        directory = self.directory / make_temporary_name(self._run.id)
        directory.mkdir(parents=True)
        try:
            yield directory / name
        finally:
            shutil.rmtree(directory)

    def _may_replace(self, path: Path) -> bool:
        if not os.path.lexists(path):
            # Registered before it exists, so that the run recognizes the file when it resumes.
            if not self._owned:
                self._run.register_output(path, self._description)
            return True
        return is_plain_file(path) and (bool(self._owned) or self._run.register_output(path, self._description))


def iter_numbered_paths(path: Path) -> Iterator[Path]:
    """Yield a path, and then the path with a number appended to its stem: `x.png`, `x-2.png`, `x-3.png`, ...

    Args:
        path: Path without a number.
    """
    yield path
    for number in count(2):
        yield path.with_name(f"{path.stem}-{number}{path.suffix}")


def is_plain_file(path: Path) -> bool:
    """Return whether a path is a regular file; False for a symbolic link and for a missing file.

    Args:
        path: Path of the file.
    """
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except (OSError, ValueError):
        return False


def owns_directory(run: Run, directory: Path, description: str = "") -> bool:
    """Return whether a directory belongs to a run, or does not exist; a missing one is registered or marked.

    Args:
        run: Active run.
        directory: Directory; one outside the work directory is created and marked if it is missing or empty.
        description: Content of the directory, as in `run.register_output`.
    """
    if run.register_output(directory, description):
        return not directory.is_symlink()
    return _is_marked(run, directory) or (_is_outside(run, directory) and _mark(run, directory))


def register_directory(run: Run, directory: Path, description: str = "") -> Path:
    """Return a directory in the work directory that belongs to the run: `directory`, or a numbered sibling.

    Args:
        run: Active run with a work directory.
        directory: Requested directory. One that no run has created is not used.
        description: Content of the directory, as in `run.register_output`.
    """
    paths = iter_numbered_paths(directory)
    own = next(name for name in paths if run.register_output(name, description) and not name.is_symlink())
    if own != directory:
        run.logger.warning(
            "%s was not created by a run and is not changed; %s is used instead.", format_path(directory), own.name
        )
    return own


def claim_directory(run: Run, directory: Path, is_foreign: Callable[[Path], bool], description: str = "") -> Path:
    """Return a directory for the files of a run: `directory`, or a subdirectory `run-2`, `run-3`, ... of it.

    Args:
        run: Active run.
        directory: Requested directory.
        is_foreign: Whether a directory that does not belong to the run contains files of the same type.
        description: Content of the directory, as in `run.register_output`.

    Raises:
        OSError: If no directory can be created.
    """

    def is_own(candidate: Path) -> bool:
        if owns_directory(run, candidate, description):
            return True
        is_unmarked = candidate.is_dir() and not os.path.lexists(candidate / MARKER)
        return is_unmarked and not is_foreign(candidate) and _write_marker(run, candidate)

    return next(filter(is_own, chain([directory], (directory / f"run-{number}" for number in count(2)))))


def set_aside(run: Run, path: Path) -> Path:
    """Rename a file or directory of a run that starts again from iteration 0 to `<stem>-old`, and return the new path.

    Args:
        run: Active run.
        path: File or directory that the run has created.

    Raises:
        OSError: If it cannot be renamed.
    """
    names = iter_numbered_paths(path.with_name(f"{path.stem}-old{path.suffix}"))
    target = next(name for name in names if not os.path.lexists(name))
    run.register_output(target, "written before the restart")
    os.rename(path, target)
    run.logger.info("%s was written before the restart and is kept as %s.", format_path(path), target.name)
    return target


def _is_outside(run: Run, directory: Path) -> bool:
    return run.work_dir is None or not directory.absolute().is_relative_to(run.work_dir.path.absolute())


def _is_marked(run: Run, directory: Path) -> bool:
    """Return whether a directory contains the marker of a run."""
    try:
        return read_regular_file(directory / MARKER, MAX_MARKER_BYTES) == _get_mark(run)
    except OSError:
        return False


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


def resolve_output_path(
    run: Run, hook: str, setting: str, value: str | os.PathLike[str], *, parent: str = "experiment_dir"
) -> Path:
    """Return the path of an output that a setting of a hook contains.

    Args:
        run: Active run.
        hook: Instance name of the hook.
        setting: Name of the setting.
        value: Value of the setting: an absolute path, which is returned unchanged, or a path relative to `parent`. `~`
            is the home directory.
        parent: Service with the directory of relative paths, the work directory or one of its subdirectories. Default:
            the work directory.

    Raises:
        ConfigError: If the value is a relative path and the run has no work directory.
    """
    directory = run.get(parent)
    if directory is None and (problem := find_path_problem(setting, value)):
        raise ConfigError([f"hook {hook!r}: {problem}"])
    return Path(directory or "") / os.path.expanduser(value)


def image_directory(
    run: Run, hook: str, setting: str, value: str | None, default: str, description: str = "images"
) -> Path | None:
    """Return the directory of a hook's images; a directory inside the work directory is claimed for the run.

    Args:
        run: Active run.
        hook: Instance name of the hook.
        setting: Name of the setting that contains the directory.
        value: Value of the setting: an absolute path, or a path relative to the image directory of the run; None if
            the setting is not set.
        default: Directory to use if the setting is not set.
        description: Content of the directory, as in `run.register_output`. Default: "images".

    Returns:
        Directory of the images; None if the run has no work directory and the setting is not set.

    Raises:
        ConfigError: If the value is a relative path and the run has no work directory.
    """
    directory = run.get("visualization_dir")
    if value is not None:
        folder = resolve_output_path(run, hook, setting, value, parent="visualization_dir")
    elif directory is not None:
        folder = Path(directory) / default
    else:
        return None
    run.register_output(folder, description)
    return folder
