"""File of a log that may be removed while it is open. Independent of the event bus."""

from __future__ import annotations

import errno
import os
from io import FileIO
from pathlib import Path

from hookbus.writers import open_for_writing


class LogFile:
    """File of a run, open without a buffer.

    Args:
        path: Path of the file; the file and its directory are created if they do not exist.
        run: ID of the run that owns the file, for the names of temporary files.

    Attributes:
        path: Path of the file.

    Raises:
        OSError: If the file cannot be opened for writing, is not a regular file, or is a symbolic link.
    """

    _file: FileIO

    def __init__(self, path: Path, run: str = "") -> None:
        self.path, self._run = path, run
        self._open()

    def close(self) -> None:
        """Close the file; a no-op if it is closed."""
        self._file.close()

    def _open(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._open_descriptor()
        self._read()

    def _open_descriptor(self) -> None:
        self._file = open(self.path, "r+b", buffering=0, opener=open_for_writing)  # noqa: SIM115 - closed in `close`

    def _read(self) -> None:
        """Read what an existing file contains."""
        raise NotImplementedError

    def _get_size(self) -> int:
        state = os.fstat(self._file.fileno())
        # Writes to a deleted file succeed on POSIX and are lost; a link count of zero is the only sign of it.
        if state.st_nlink:
            return state.st_size
        self.close()
        self._open()
        raise FileNotFoundError(errno.ENOENT, "the file was deleted while it was open", str(self.path))
