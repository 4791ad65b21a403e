"""Markdown tables, and parts of docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable

__all__ = ["capitalize", "parse_section", "table"]


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table."""
    heads = tuple(heads)
    lines = [heads, ("---",) * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |" for line in lines)


def parse_section(documented: object, section: str) -> dict[str, str]:
    """Return the entries of a docstring section by name."""
    match = re.search(rf"^{section}:\n(.*?)(?:\n\n|\Z)", inspect.getdoc(documented) or "", re.DOTALL | re.MULTILINE)
    entries = re.split(r"^    (\w+): ", match[1] if match else "", flags=re.MULTILINE)[1:]
    return {name: " ".join(text.split()) for name, text in zip(entries[::2], entries[1::2], strict=True)}


def capitalize(text: str) -> str:
    """Return the text with a capital first letter."""
    return text[0].upper() + text[1:]
