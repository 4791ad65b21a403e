"""Paths in messages."""

from __future__ import annotations

import os


def format_path(path: str | os.PathLike[str]) -> str:
    """Return a path for a message; one with control characters or bytes that are not UTF-8 is quoted and escaped.

    Args:
        path: Path, or a part of it.
    """
    # An escape sequence in a name would change the terminal, and a newline would look like another message.
    text = os.fspath(path)
    return text if text.isprintable() else ascii(text)
