"""A file that grows by whole pieces, whatever happens to the disk or to the process."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from hookbus.checkpoints.files import commit

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
        self._waiting: list[bytes] = []
        self._open()

    def put(self, piece: bytes) -> None:
        """Add a piece; it is in the file after the next `flush`."""
        self._waiting.append(piece)

    def flush(self) -> None:
        """Write what waits. It is with the operating system then, so the process may be killed.

        Raises:
            OSError: it could not be written, or the file was removed. It is as before, and what waited is forgotten.
        """
        data, self._waiting = b"".join(self._waiting), []
        if not data:
            return
        state = os.fstat(self._file.fileno())
        if not state.st_nlink:
            raise FileNotFoundError(errno.ENOENT, "it was removed while it was written", str(self.path))
        begin = state.st_size
        try:
            while data:
                data = data[self._file.write(data) :]
        except OSError:
            self._file.truncate(begin)
            raise

    def forget(self) -> None:
        """Drop what waits."""
        self._waiting = []

    def lines(self) -> list[str]:
        """The whole lines in the file, with their ends; a torn last one, as a kill leaves it, is left out."""
        whole = self.path.read_bytes().rpartition(b"\n")[0]
        return [f"{line}\n" for line in whole.decode().split("\n")] if whole else []

    def replace(self, content: bytes) -> None:
        """Put this in the place of all that is in the file, and go on behind it; what waits still waits.

        Raises:
            OSError: it could not be written; the file is as it was before.
        """
        commit(self.path, lambda file: file.write(content))
        self._file.close()
        self._open()

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

    def _open(self) -> None:
        self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115 - it stays open until `close`
