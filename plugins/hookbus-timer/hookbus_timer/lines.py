"""A text file that contains only complete lines.

Usable without hookbus.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

__all__ = ["append_line"]


def append_line(path: Path, line: str) -> None:
    """Append one line; the directory and the file are created if they do not exist.

    Args:
        path: Path of the file.
        line: Text without a newline.

    Raises:
        OSError: If the line cannot be written; the file is unchanged.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    data = f"{line}\n".encode()
    # Unbuffered, so that `write` makes one system call and returns the number of bytes that fit on the disk.
    with path.open("ab", buffering=0) as file:
        before = file.tell()
        if file.write(data) != len(data):
            file.truncate(before)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
