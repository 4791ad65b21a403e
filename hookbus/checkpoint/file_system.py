"""Operations that some file systems do not support: fsync, hard links, and their fallbacks.

The error number of an operation decides: a missing feature is reported once per file system, and the fallback is used;
every other error is raised with its path.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hookbus._utils.system import sync_file
from hookbus.errors import format_path

NOT_IMPLEMENTED = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP})
FSYNC_UNSUPPORTED = NOT_IMPLEMENTED | {errno.EBADF}
"""Errors of `fsync`, mainly for a directory: CIFS, FUSE, network file systems."""
OPEN_DIRECTORY_UNSUPPORTED = frozenset({errno.EACCES, errno.EISDIR, errno.EPERM}) | NOT_IMPLEMENTED
LINK_UNSUPPORTED = NOT_IMPLEMENTED | {errno.EPERM, errno.EXDEV, errno.EMLINK}
"""Errors of `link`: FAT and exFAT, FUSE, a bind mount in the directory, the maximum number of links."""

_logger = logging.getLogger("hookbus")

_reported: set[tuple[str, int]] = set()
"""Missing features that the current run has reported, with the device number of the file system."""


def reset_warnings() -> None:
    """Report the missing features again; called at the start of a run."""
    _reported.clear()


@contextmanager
def add_path(path: Path) -> Iterator[None]:
    """Add a path to errors of operations on a file descriptor, which do not contain one."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = str(path)
        raise


def fsync(path: Path) -> None:
    """Fsync a file or a directory; for a directory this makes created and renamed entries durable.

    Args:
        path: The file or directory. Without support of the file system, a warning is logged.

    Raises:
        OSError: If the data could not be written.
    """
    try:
        # Windows flushes only a file that is open for writing, and opens no directory.
        descriptor = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    except OSError as error:
        if not path.is_dir() or error.errno not in OPEN_DIRECTORY_UNSUPPORTED:
            raise
        _warn_about_fsync(path, error)
        return
    try:
        fsync_file(descriptor, path)
    finally:
        os.close(descriptor)


def fsync_file(descriptor: int, path: Path) -> None:
    """Fsync an open file or directory, see `fsync`."""
    try:
        with add_path(path):
            sync_file(descriptor)
    except OSError as error:
        if error.errno not in FSYNC_UNSUPPORTED:
            raise
        _warn_about_fsync(path, error)


def link_or_copy(source: Path, target: Path) -> None:
    """Create a hard link, or a copy if the file system does not support hard links.

    Raises:
        OSError: If the link fails for another reason, or the copy cannot be written.
    """
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in LINK_UNSUPPORTED:
            raise
        effect = "so each further name of a checkpoint is a copy. Provide space for the copies"
        _warn_once("hard links", source.parent, error, effect)
        copy_file(source, target)


def copy_file(source: Path, target: Path) -> None:
    """Write a durable copy of a file."""
    with add_path(target), open(source, "rb") as read, open(target, "wb") as write:
        shutil.copyfileobj(read, write, 1 << 20)
        write.flush()
        fsync_file(write.fileno(), target)


def _warn_about_fsync(path: Path, error: OSError) -> None:
    feature, directory = ("fsync of directories", path) if path.is_dir() else ("fsync", path.parent)
    effect = "so the last files may be lost in a power failure. Keep several checkpoints"
    _warn_once(feature, directory, error, effect)


def _warn_once(feature: str, directory: Path, error: OSError, effect: str) -> None:
    key = (feature, directory.stat().st_dev)
    if key not in _reported:
        _reported.add(key)
        _logger.warning(
            "%s: the file system does not support %s (%s), %s.", format_path(directory), feature, error.strerror, effect
        )
