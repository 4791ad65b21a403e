"""Exclusive locks of directories, and the errors of directories that cannot be written or locked."""

from __future__ import annotations

import errno
import logging
import os
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hookbus._utils.files import get_reason, open_regular_file
from hookbus._utils.system import call_in_forked_child, lock_file, open_descriptor, read_at, sync_file, write_at
from hookbus.errors import WorkDirError, format_path

LOCK = ".hookbus.lock"
MARKER = b"hookbus lock: "
"""Beginning of every lock file. A file of this name with another beginning is foreign."""
RUN = "run "
MAX_SIZE = 4096

LOCKED_BY_OTHERS = frozenset({errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES})
LOCKS_UNSUPPORTED = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL})
"""Errors of `flock` on file systems without locks: NFS without a lock daemon, Lustre without `-o flock`, FUSE."""

_logger = logging.getLogger("hookbus")


class DirectoryLock:
    """Exclusive lock of a directory. The system releases it when the process ends.

    Attributes:
        runs: IDs of the runs that earlier holders recorded in the lock file. Such a run may have been killed and have
            left temporary files.
    """

    def __init__(self, descriptor: int, *, writable: bool, unsupported: str) -> None:
        self._descriptor: int | None = descriptor
        self._writable = writable
        self._unsupported = unsupported
        lines = read_at(descriptor, MAX_SIZE, 0).decode(errors="replace").splitlines()
        recorded = [line.removeprefix(RUN) for line in lines if line.startswith(RUN)]
        self.runs = tuple(run for run in recorded if run.isascii() and run.isalnum())
        # The recorded runs are kept until their temporary files are removed.
        self.record_runs(self.runs)
        _locks.add(self)

    def warn_if_unsupported(self, path: Path) -> None:
        """Log a warning if the file system of the directory does not support locks."""
        if self._unsupported:
            _logger.warning(
                "%s: the file system does not support locks (%s), so concurrent runs in this directory cannot be "
                "detected. Start only one run at a time in it.",
                format_path(path),
                self._unsupported,
            )

    def release(self) -> None:
        """Release the lock. Idempotent."""
        if self._descriptor is not None:
            _locks.discard(self)
            os.close(self._descriptor)
            self._descriptor = None

    def record_runs(self, runs: Iterable[str]) -> None:
        """Replace the recorded runs, before the one that uses the directory now creates temporary files."""
        if self._descriptor is None or not self._writable:
            return
        lines = [f"pid {os.getpid()} on {socket.gethostname()}", *(f"{RUN}{run}" for run in runs)]
        content = MARKER + "".join(f"{line}\n" for line in lines).encode()
        # The lock is that of the system; a file that cannot be written locks as well.
        with suppress(OSError):
            # Overwritten before it is truncated: the file begins with the marker whenever the process is killed.
            write_at(self._descriptor, content, 0)
            os.ftruncate(self._descriptor, len(content))
            sync_file(self._descriptor)


_locks: set[DirectoryLock] = set()
"""Locks of this process."""


# A lock of `flock` belongs to the open file, which a fork shares: it is released when all copies are closed.
def _release_after_fork() -> None:
    """Close the locks in a forked child, such as a data worker, which may outlive this process."""
    for lock in tuple(_locks):
        lock.release()


call_in_forked_child(_release_after_fork)


def get_write_error(path: Path) -> str:
    """Return the reason why a directory cannot be written or created, without writing to it; "" if it can."""
    try:
        os.access(path, os.F_OK)  # unlike `Path.exists`, raises for an invalid name
        # A dangling link does not exist, but nothing can be created in its place.
        parent = next(p for p in (path, *path.absolute().parents) if p.exists() or p.is_symlink())
    except (OSError, ValueError) as error:
        return get_reason(error)
    if not parent.is_dir():
        return f"{format_path(parent)} is not a directory"
    return "" if os.access(parent, os.W_OK) else f"no write permission in {format_path(parent)}"


def not_writable_error(
    path: Path, reason: str, label: str = "work directory", setting: str = "work_dir", operation: str = "written"
) -> WorkDirError:
    """Return the error of a directory that cannot be written, or locked."""
    return WorkDirError(f"The {label} {format_path(path)} cannot be {operation}: {reason}. Set another {setting}.")


def describe_foreign_file(path: Path, reason: str, setting: str = "work_dir") -> str:
    """Return the message about a file that has a name which a run needs, and that no run has written."""
    return f"{format_path(path)} was not written by a run: {reason}. Move the file, or set another {setting}."


def create_directory(path: Path, label: str = "directory", setting: str = "work_dir") -> Path:
    """Create a directory with its parents, unless it exists, and return it.

    Raises:
        WorkDirError: If it cannot be created, or if a file has its name.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise not_writable_error(path, get_reason(error), label, setting) from error
    return path


def find_lock_problem(directory: Path, setting: str = "work_dir") -> str:
    """Return the error of a foreign file in the place of the lock file; "" if the directory can be locked."""
    path = directory / LOCK
    try:
        with open_regular_file(path, follow=False) as file:
            start = file.read(len(MARKER))
    except OSError as error:
        return describe_foreign_file(path, get_reason(error), setting) if os.path.lexists(path) else ""
    # A process that was killed before it wrote to the file leaves an empty one.
    return "" if start in (b"", MARKER) else describe_foreign_file(path, "it is not a lock file", setting)


def has_lock_file(directory: Path) -> bool:
    """Return whether a directory contains a lock file that a run has written."""
    try:
        with open_regular_file(directory / LOCK, follow=False) as file:
            return file.read(len(MARKER)) == MARKER
    except OSError:
        return False


@contextmanager
def explain_write_errors(path: Path) -> Iterator[None]:
    """Raise a WorkDirError that names a work directory if a file in it cannot be written inside the context."""
    try:
        yield
    except OSError as error:
        file = "" if error.filename is None else f" ({format_path(str(error.filename))})"
        raise not_writable_error(path, f"{get_reason(error)}{file}") from error


def acquire_lock(
    path: Path, *, required: bool, label: str = "work directory", setting: str = "work_dir"
) -> DirectoryLock | None:
    """Lock a directory.

    Args:
        path: Directory; created if it is missing.
        required: Whether to raise if another process has locked the directory.
        label: Description of the directory, for messages.
        setting: Setting that names the directory, for messages.

    Returns:
        The lock, which has no effect if the file system does not support locks; None if another process has locked the
        directory.

    Raises:
        WorkDirError: If the directory cannot be written or locked, or the lock file is foreign.
    """
    create_directory(path, label, setting)
    descriptor, is_new = _open_lock_file(path, label, setting)
    unsupported = ""
    try:
        lock_file(descriptor)
    except OSError as error:
        if error.errno in LOCKED_BY_OTHERS:
            owner = _read_owner(descriptor)
            os.close(descriptor)
            if required:
                raise WorkDirError(
                    f"The {label} {format_path(path)} is in use by an active run ({owner}). Stop that run, or set "
                    f"another {setting}."
                ) from None
            return None
        if error.errno not in LOCKS_UNSUPPORTED:
            os.close(descriptor)
            raise not_writable_error(path, get_reason(error), label, setting, "locked") from error
        unsupported = get_reason(error)
    # A file that was written by a run and has no other name, under which it may belong to a user.
    is_own = read_at(descriptor, len(MARKER), 0) == MARKER and os.fstat(descriptor).st_nlink == 1
    return DirectoryLock(descriptor, writable=is_new or is_own, unsupported=unsupported)


def can_lock_new_file(directory: Path) -> bool:
    """Return whether the file system locks a file that no other process can have locked."""
    import tempfile

    with tempfile.TemporaryFile(dir=directory) as file:
        try:
            lock_file(file.fileno())
        except OSError as error:
            return error.errno not in LOCKED_BY_OTHERS
    return True


def _open_lock_file(path: Path, label: str, setting: str) -> tuple[int, bool]:
    """Open the lock file of a directory, and return its descriptor and whether it was created."""
    if problem := find_lock_problem(path, setting):
        raise WorkDirError(problem)
    try:
        with suppress(FileExistsError):
            return open_descriptor(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644), True
        # The file may have been replaced after the check.
        return open_descriptor(path / LOCK, os.O_RDWR), False
    except OSError as error:
        raise not_writable_error(path, get_reason(error), label, setting) from error


def _read_owner(descriptor: int) -> str:
    """Return the description of the process that has locked a file."""
    lines = read_at(descriptor, MAX_SIZE, 0).decode(errors="replace").splitlines()
    owner = lines[0].removeprefix(MARKER.decode()) if lines else ""
    return owner if owner and owner.isprintable() else "another process"
