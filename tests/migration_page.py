"""Rows of the tables of docs/coming-from.md, for the tests of the packages that run them."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs/coming-from.md"


def read_rows(section: str) -> list[tuple[str, str]]:
    """Return the rows of the tables of a section, as pairs of what a framework has and what replaces it.

    Args:
        section: Heading of the section, such as "Keras".

    Raises:
        ValueError: If there is no such section, or if it has no table.
    """
    text = PAGE.read_text()
    match = re.search(rf"^## {re.escape(section)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    if match is None:
        raise ValueError(f"{PAGE.name}: no section, got {section!r}. Pass the heading of a framework.")
    tables: list[str] = re.findall(r"^\|[^\n]*\|\n\|---\|---\|\n((?:\|.*\n)+)", match[1], re.MULTILINE)
    rows = [tuple(cell.strip() for cell in line.split("|")[1:3]) for table in tables for line in table.splitlines()]
    if not rows:
        raise ValueError(f"{PAGE.name}: section {section!r} has no table.")
    return [(left, right) for left, right in rows]
