"""List of the installed hooks by package, in the width of standard output."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from rich.cells import cell_len
from rich.text import Text

from hookbus._cli.console import output_console
from hookbus._cli.output import COLUMN_GAP
from hookbus._utils.plugin_entries import INSTALL_STANDARD


def print_hooks(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the installed hooks."""
    if not rows:
        output_console().print(f"No hooks are installed. Run: {INSTALL_STANDARD}", markup=False)
        return
    width = max(cell_len(str(row["name"])) for row in rows) + COLUMN_GAP
    packages = sorted(rows, key=lambda row: (row["package"], row["name"]))
    for index, (package, group) in enumerate(groupby(packages, key=lambda row: f"{row['package']} {row['version']}")):
        output_console().print(Text(f"{chr(10) if index else ''}{package}", "bold"))
        for row in group:
            blocked = "blocked by HOOKBUS_BLOCK. " if row["blocked"] else ""
            _print_item(str(row["name"]), f"{blocked}{row['summary']}", width, "yellow" if blocked else "")


def _print_item(name: str, text: str, width: int, style: str = "") -> None:
    """Print a name with a text beside it, which is wrapped to the width of standard output.

    Args:
        name: The name.
        text: The text.
        width: Width of the column of names.
        style: rich style of the text. Default: none.
    """
    available = max(output_console().width - width - COLUMN_GAP, 1)
    lines = textwrap.wrap(text, available, break_long_words=False, break_on_hyphens=False) or [""]
    for line in lines:
        row = Text.assemble(" " * COLUMN_GAP, name.ljust(width), (line, style))
        row.rstrip()
        output_console().print(row)
        name = ""
