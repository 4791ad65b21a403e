"""Paths in messages."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hookbus.errors import format_path


@pytest.mark.parametrize("path", ["runs/x", "a b.txt", "données/学习", Path("/tmp/it's")], ids=str)
def test_printable_path_is_shown_unchanged(path: str | Path) -> None:
    assert format_path(path) == str(path)


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("a\x1b[2Jb", r"'a\x1b[2Jb'"),
        (Path("runs/a\nb"), r"'runs/a\nb'"),
        ("a\0b", r"'a\x00b'"),
        (os.fsdecode(b"a\xff"), r"'a\udcff'"),
        ("a\u202eb", r"'a\u202eb'"),
        ("a\x9b2J", r"'a\x9b2J'"),
    ],
)
def test_path_with_unprintable_characters_is_escaped(path: str | Path, shown: str) -> None:
    assert format_path(path) == shown
