"""A file that grows by whole pieces, whatever happens to the disk or to the process."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["AppendedFile"]


class AppendedFile:
    """A file that is only ever appended to: what is put in waits until `flush` writes it, all of it or nothing.

    Args:
        path: the file; it and its directory are made if they are not there.

    Attributes:
        path: the file.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - it stays open until `close`
        self._waiting: list[bytes] = []

    def put(self, piece: bytes) -> None:
        """Add a piece; it is in the file after the next `flush`."""
        self._waiting.append(piece)

    def flush(self) -> None:
        """Write what waits. It is with the operating system then, so the process may be killed.

        Raises:
            OSError: it could not be written. The file is as it was before, and what waited is forgotten.
        """
        data, self._waiting = b"".join(self._waiting), []
        begin = os.fstat(self._file.fileno()).st_size
        try:
            while data:
                data = data[self._file.write(data) :]
        except OSError:
            self._file.truncate(begin)
            raise

    def forget(self) -> None:
        """Drop what waits."""
        self._waiting = []

    def close(self) -> None:
        """Write what waits, and close the file. May be called twice.

        Raises:
            OSError: it could not be written; the file is closed all the same.
        """
        if self._file.closed:
            return
        try:
            self.flush()
        finally:
            self._file.close()
