"""Functions of the operating system that some platforms lack, and their fallbacks. `docs/platforms.md` lists them."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

fcntl: ModuleType | None
msvcrt: ModuleType | None
resource: ModuleType | None
try:
    import fcntl
    import resource
except ModuleNotFoundError:  # Windows
    fcntl = resource = None
try:
    import msvcrt
except ModuleNotFoundError:  # all other systems
    msvcrt = None

NO_FOLLOW: int = getattr(os, "O_NOFOLLOW", 0)
OPEN_FLAGS: int = (
    getattr(os, "O_CLOEXEC", getattr(os, "O_NOINHERIT", 0))
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_BINARY", 0)  # on Windows, line breaks would be translated without it
)
"""Flags with which a file is not inherited by other programs, a FIFO does not block, and bytes are not translated."""

LOCKED_BYTE = 1 << 30
"""Position of the byte that is locked on Windows, where a locked byte cannot be read: behind the content of a file."""

IN_USE = frozenset({5, 32})
"""Errors of Windows (`ERROR_ACCESS_DENIED`, `ERROR_SHARING_VIOLATION`) while another program reads a file."""

REPLACE_DELAYS_S = (0.01, 0.03, 0.1, 0.3, 0.6)
"""Delays in seconds before a file that is in use is replaced again."""


def open_descriptor(path: Path | str, flags: int, mode: int = 0o666, *, follow: bool = False) -> int:
    """Open a file without following a symbolic link or blocking on a FIFO, and return its descriptor.

    Args:
        path: Path of the file.
        flags: Flags of `os.open`.
        mode: Permissions of a file that is created.
        follow: Whether the path may be a symbolic link.

    Raises:
        OSError: If the file cannot be opened.
    """
    if not follow and not NO_FOLLOW and os.path.islink(path):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    return os.open(path, flags | OPEN_FLAGS | (0 if follow else NO_FOLLOW), mode)


def read_at(descriptor: int, size: int, position: int) -> bytes:
    """Read bytes of an open file at a position. Without `os.pread`, the position of the descriptor changes."""
    if hasattr(os, "pread"):
        return os.pread(descriptor, size, position)
    os.lseek(descriptor, position, os.SEEK_SET)
    return os.read(descriptor, size)


def write_at(descriptor: int, data: bytes, position: int) -> int:
    """Write bytes at a position of an open file, and return their number; see `read_at`."""
    if hasattr(os, "pwrite"):
        return os.pwrite(descriptor, data, position)
    os.lseek(descriptor, position, os.SEEK_SET)
    return os.write(descriptor, data)


def lock_file(descriptor: int) -> None:
    """Lock an open file exclusively, without blocking. The lock ends when the file is closed.

    Raises:
        OSError: If another process has locked the file, or locks are not supported.
    """
    if fcntl is not None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    elif msvcrt is not None:
        os.lseek(descriptor, LOCKED_BYTE, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    else:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


def sync_file(descriptor: int) -> None:
    """Write an open file or directory to the storage device.

    Raises:
        OSError: If the data could not be written, or the file system does not support it.
    """
    # On macOS, `fsync` leaves the data in the cache of the device. Not every file system supports the alternative.
    command = getattr(fcntl, "F_FULLFSYNC", None)
    if fcntl is not None and command is not None:
        try:
            fcntl.fcntl(descriptor, command)
        except OSError:
            pass
        else:
            return
    os.fsync(descriptor)


def replace_file(source: Path, target: Path) -> None:
    """Rename a file to the name of another file. On Windows, wait while another program reads that file.

    Raises:
        OSError: If the file cannot be renamed, or remains in use for a second.
    """
    for delay in REPLACE_DELAYS_S:
        try:
            os.replace(source, target)
        except PermissionError as error:
            if getattr(error, "winerror", None) not in IN_USE:
                raise
            time.sleep(delay)
        else:
            return
    os.replace(source, target)


def call_in_forked_child(function: Callable[[], object]) -> None:
    """Call a function in each forked child process; a no-op on Windows, where processes cannot be forked."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)


def limit_file_size(size: int | None) -> None:
    """Limit the size of the files that this process can write.

    Args:
        size: Maximum size in bytes; None for no limit.

    Raises:
        OSError: If the system has no such limit, as on Windows.
    """
    if resource is None:
        raise OSError(errno.ENOSYS, "Windows has no limit of the file size")
    limit = resource.RLIM_INFINITY if size is None else size
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
