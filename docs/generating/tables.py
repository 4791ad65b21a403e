"""Tables, and what docstrings say for them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable

__all__ = ["described", "sentence", "table"]


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown."""
    heads = tuple(heads)
    lines = [heads, ("---",) * len(heads), *rows]
    return "\n".join(f"| {' | '.join(each.replace('|', '&#124;') for each in line)} |" for line in lines)


def described(thing: object, section: str) -> dict[str, str]:
    """The entries of a section of a docstring, by name."""
    found = re.search(rf"^{section}:\n(.*?)(?:\n\n|\Z)", inspect.getdoc(thing) or "", re.DOTALL | re.MULTILINE)
    entries = re.split(r"^    (\w+): ", found[1] if found else "", flags=re.MULTILINE)[1:]
    return {name: " ".join(text.split()) for name, text in zip(entries[::2], entries[1::2], strict=True)}


def sentence(text: str) -> str:
    """With a capital letter."""
    return text[0].upper() + text[1:]
