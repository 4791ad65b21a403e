"""A text file that contains only complete lines."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from hookbus.writers import open_for_writing, open_regular_file

__all__ = ["append_line", "read_first_line"]

MAX_LINE_BYTES = 1000


def append_line(path: Path, line: str) -> None:
    """Append one line; the directory and the file are created if they do not exist.

    Args:
        path: Path of the file.
        line: Text without a newline.

    Raises:
        OSError: If the line cannot be written; the file is unchanged. A link or a FIFO is refused.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    data = f"{line}\n".encode()
    # Unbuffered, so that `write` makes one system call and returns the number of bytes that fit on the disk.
    with open(path, "ab", buffering=0, opener=open_for_writing) as file:
        before = file.tell()
        if file.write(data) != len(data):
            file.truncate(before)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def read_first_line(path: Path) -> str:
    """Return the first line of a file, without the end of a long line; "" if it cannot be read."""
    try:
        with open_regular_file(path, follow=False) as file:
            return file.readline(MAX_LINE_BYTES).decode(errors="replace")
    except OSError:
        return ""
