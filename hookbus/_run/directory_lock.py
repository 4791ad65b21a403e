"""Exclusive locks of directories, and the errors of directories that cannot be written or locked."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import socket
from contextlib import suppress
from pathlib import Path

from hookbus._utils.paths import format_path
from hookbus.errors import WorkDirError

__all__ = [
    "acquire_lock",
    "get_reason",
    "get_write_error",
    "not_lockable_error",
    "not_writable_error",
    "release_lock",
    "warn_if_unsupported",
]

LOCK = ".lock"
LOCKED_BY_OTHERS = frozenset({errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES})
LOCKS_UNSUPPORTED = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL})
"""Errors of `flock` on file systems without locks: NFS without a lock daemon, Lustre without `-o flock`, FUSE."""

_logger = logging.getLogger("hookbus")

_locks: set[int] = set()
"""File descriptors of the locks of this process."""

_unsupported: dict[int, str] = {}
"""Descriptors of lock files without a lock, and the reason of the system."""


# A lock of `flock` belongs to the open file, which a fork shares: it is released when all copies are closed.
def _release_after_fork() -> None:
    """Close the locks in a forked child, such as a data worker, which may outlive this process."""
    while _locks:
        os.close(_locks.pop())


os.register_at_fork(after_in_child=_release_after_fork)


def get_write_error(path: Path) -> str:
    """Return the reason why a directory cannot be written or created, without writing to it; "" if it can."""
    try:
        os.access(path, os.F_OK)  # unlike `Path.exists`, raises for an invalid name
        parent = next(ancestor for ancestor in (path, *path.absolute().parents) if ancestor.exists())
    except (OSError, ValueError) as error:
        return get_reason(error)
    if not parent.is_dir():
        return f"{parent} is not a directory"
    return "" if os.access(parent, os.W_OK) else f"no write permission in {parent}"


def get_reason(error: OSError | ValueError) -> str:
    """Return the reason of an error of the system, or of a ValueError about an invalid character in a path."""
    return str(error.strerror if isinstance(error, OSError) else error)


def not_writable_error(
    path: Path, reason: str, label: str = "work directory", setting: str = "work_dir"
) -> WorkDirError:
    """Return the error of a directory that cannot be written."""
    return WorkDirError(f"The {label} {format_path(path)} cannot be written: {reason}. Set another {setting}.")


def acquire_lock(path: Path, *, required: bool, label: str = "work directory", setting: str = "work_dir") -> int | None:
    """Lock a directory.

    Args:
        path: Directory; created if it is missing.
        required: Whether to raise if another process has locked the directory.
        label: Description of the directory, for messages.
        setting: Setting that names the directory, for messages.

    Returns:
        The descriptor of the lock file, which is unlocked if the file system does not support locks; None if another
        process has locked the directory.

    Raises:
        WorkDirError: If the directory cannot be written or locked.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except (OSError, ValueError) as error:
        raise not_writable_error(path, get_reason(error), label, setting) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in LOCKED_BY_OTHERS:
            owner = os.read(descriptor, 200).decode(errors="replace").strip() or "another process"
            os.close(descriptor)
            if required:
                raise WorkDirError(
                    f"The {label} {path} is in use by an active run ({owner}). Stop that run, or set another {setting}."
                ) from None
            return None
        if error.errno not in LOCKS_UNSUPPORTED:
            os.close(descriptor)
            raise not_lockable_error(path, get_reason(error), label, setting) from error
        _unsupported[descriptor] = get_reason(error)
    # The content is informative only; the lock is that of the system, which is released when the process ends.
    _locks.add(descriptor)
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"pid {os.getpid()} on {socket.gethostname()}\n".encode())
    return descriptor


def warn_if_unsupported(lock: int, path: Path) -> None:
    """Log a warning if the file system of a directory does not support locks."""
    if lock in _unsupported:
        _logger.warning(
            "%s: the file system does not support locks (%s), so concurrent runs in this directory cannot be "
            "detected. Start only one run at a time in it.",
            path,
            _unsupported[lock],
        )


def not_lockable_error(path: Path, reason: str, label: str, setting: str) -> WorkDirError:
    """Return the error of a directory that cannot be locked."""
    return WorkDirError(f"The {label} {path} cannot be locked: {reason}. Set another {setting}.")


def release_lock(descriptor: int) -> None:
    """Release a lock. Idempotent."""
    if descriptor in _locks:  # a forked child has closed its descriptors already
        _locks.remove(descriptor)
        _unsupported.pop(descriptor, None)
        os.close(descriptor)
