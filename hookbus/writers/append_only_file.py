"""Append-only file with all-or-nothing writes."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from hookbus._utils.files import open_for_writing, open_regular_file
from hookbus.checkpoint.atomic_files import atomic_write


class AppendOnlyFile:
    """Append-only file. Data is buffered until `flush` writes all of it or nothing.

    Args:
        path: Path of the file; the file and its directory are created if they do not exist.
        run: ID of the run that owns the file, for the names of temporary files; "" if it belongs to no run.

    Attributes:
        path: Path of the file.

    Raises:
        OSError: If the file cannot be opened, is not a regular file, or is a symbolic link.
    """

    def __init__(self, path: Path, run: str = "") -> None:
        self.path, self._run = path, run
        path.parent.mkdir(parents=True, exist_ok=True)
        self._pending: list[bytes] = []
        self._open()

    def append(self, data: bytes) -> None:
        """Buffer data for the next `flush`.

        Args:
            data: Bytes, usually complete lines.
        """
        self._pending.append(data)

    def flush(self) -> None:
        """Write the buffered data to the operating system, so that it survives a kill of the process.

        Raises:
            OSError: If the data could not be written, or the file was deleted. The content of the file is unchanged,
                and the buffered data is discarded.
        """
        data, self._pending = b"".join(self._pending), []
        if not data:
            return
        state = os.fstat(self._file.fileno())
        # Writing to a deleted file succeeds without an error, and the data would be lost.
        if not state.st_nlink:
            raise FileNotFoundError(errno.ENOENT, "the file was deleted while it was open", str(self.path))
        begin = state.st_size
        try:
            # An unbuffered `write` may write a part of the data, for example when the disk is full.
            while data:
                data = data[self._file.write(data) :]
        except OSError:
            self._file.truncate(begin)
            raise

    def discard_pending(self) -> None:
        """Discard the buffered data."""
        self._pending = []

    def read_lines(self) -> list[str]:
        """Return the complete lines of the file, with line breaks; a last line truncated by a kill is omitted."""
        with open_regular_file(self.path, follow=False) as file:
            complete = file.read().rpartition(b"\n")[0]
        return [f"{line}\n" for line in complete.decode().split("\n")] if complete else []

    def replace(self, content: bytes) -> None:
        """Replace the content of the file atomically; buffered data remains buffered.

        Args:
            content: New content of the file.

        Raises:
            OSError: If the content could not be written; the file is unchanged.
        """
        # Windows cannot replace an open file; elsewhere, the descriptor would refer to the replaced one.
        self._file.close()
        try:
            atomic_write(self.path, lambda file: file.write(content), run=self._run)
        finally:
            self._open()

    def close(self) -> None:
        """Write the buffered data and close the file. Idempotent.

        Raises:
            OSError: If the data could not be written; the file is closed nevertheless.
        """
        if self._file.closed:
            return
        try:
            self.flush()
        finally:
            self._file.close()

    def _open(self) -> None:
        # Unbuffered, so that a failed write leaves no data in a Python buffer that a later close would write.
        self._file = open(self.path, "ab", buffering=0, opener=open_for_writing)  # noqa: SIM115 - stays open until `close`
