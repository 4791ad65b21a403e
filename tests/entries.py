"""Entries of a directory that hookbus did not write."""

from __future__ import annotations

import os
from pathlib import Path

KINDS = ("file", "directory", "FIFO", "hard link", "symlink", "dangling symlink")
"""Kinds of entries that `occupy` creates."""


def occupy(path: Path, kind: str, target: Path) -> None:
    """Create an entry of a user.

    Args:
        path: Path of the entry.
        kind: One of `KINDS`.
        target: Existing file that a link refers to.
    """
    if kind == "file":
        path.write_text("years of work")
    elif kind == "directory":
        path.mkdir()
    elif kind == "FIFO":
        os.mkfifo(path)
    elif kind == "hard link":
        os.link(target, path)
    else:
        path.symlink_to(target if kind == "symlink" else target.parent / "nowhere")
