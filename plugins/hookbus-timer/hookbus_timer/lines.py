"""A file of lines that holds whole lines only.

Usable without hookbus.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

__all__ = ["append_line"]


def append_line(path: Path, line: str) -> None:
    """Append one line; the directory and the file are made where they are missing.

    Args:
        path: the file.
        line: the text, without its end of line.

    Raises:
        OSError: the line could not be written; the file is as it was before.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    data = f"{line}\n".encode()
    with path.open("ab", buffering=0) as file:
        before = file.tell()
        if file.write(data) != len(data):
            file.truncate(before)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
