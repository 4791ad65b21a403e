"""Test of the page "Troubleshooting": each message in a heading is one of the source code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.pages import ROOT

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
HEADINGS = re.findall(r"^### `(.+)`$", PAGE, re.MULTILINE)
MAX_LENGTH = 1000
"""Maximum length of a message; longer strings are docstrings and sources."""


def iter_strings(path: Path) -> Iterator[str]:
    """Yield the strings of a module, with `…` for each value that is inserted."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield re.sub(r"%[sdr]|%\.\w+", "…", node.value)


def contains(text: str, message: str) -> bool:
    """Return whether a string contains the parts of a message, between the inserted values, in their order."""
    end = 0
    for part in message.split("…"):
        start = text.find(part.rstrip("."), end)
        if start < 0:
            return False
        end = start + len(part)
    return True


def test_messages_are_in_the_source_code() -> None:
    paths = [*ROOT.glob("hookbus/**/*.py"), *ROOT.glob("plugins/*/hookbus_*/**/*.py")]
    texts = [text for path in paths for text in iter_strings(path) if len(text) < MAX_LENGTH]

    assert len(HEADINGS) > 25
    assert [message for message in HEADINGS if not any(contains(text, message) for text in texts)] == []
