"""Tables and paragraphs in the width of standard output. Lines break at spaces only, so that names stay intact."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from hookbus._cli.console import output_console

COLUMN_GAP = 2
"""Number of spaces between two columns."""


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str | Text]], titles: int = 1) -> None:
    """Print a table, or, if it is too wide, each row as a title with its remaining cells below.

    Args:
        columns: Header; "" for a column without a title.
        rows: Cells; trailing cells may be omitted.
        titles: Number of leading cells that form the title of a row. Default: 1.
    """
    texts = [[Text(cell) if isinstance(cell, str) else cell for cell in cells] for cells in rows]
    header = [Text(column, "bold") for column in columns]
    widths = _fit_widths([header, *texts], output_console().width)
    if widths is None:
        _print_stacked([header, *texts], titles)
    else:
        _print_columns(header, texts, widths)


def print_paragraph(text: str, indent: int = 0, hanging: int = 0, style: str = "") -> None:
    """Print a paragraph, wrapped to the width of standard output.

    Args:
        text: Text to print.
        indent: Number of spaces before each line. Default: 0.
        hanging: Number of additional spaces before the second and later lines. Default: 0.
        style: rich style. Default: none.
    """
    first, later = " " * indent, " " * (indent + hanging)
    lines = textwrap.wrap(
        text,
        output_console().width,
        initial_indent=first,
        subsequent_indent=later,
        break_long_words=False,
        break_on_hyphens=False,
    )
    output_console().print(Text("\n".join(lines), style), soft_wrap=True)


# -- helpers ---------------------------------------------------------------------------------------


def _fit_widths(rows: Sequence[Sequence[Text]], available: int) -> list[int] | None:
    """Return column widths that fit the available width, or None if words would have to break.

    The rightmost columns are narrowed first.
    """
    columns = [[row[i] for row in rows if i < len(row)] for i in range(len(rows[0]))]
    widths = [max(cell.cell_len for cell in column) for column in columns]
    excess = sum(widths) + COLUMN_GAP * (len(widths) - 1) - available
    # The first column is never narrowed: it contains the name that identifies a row.
    for i in reversed(range(1, len(widths))):
        longest_word = max(cell_len(word) for cell in columns[i] for word in cell.plain.split() or [""])
        reduction = min(max(excess, 0), widths[i] - longest_word)
        widths[i] -= reduction
        excess -= reduction
    return widths if excess <= 0 else None


def _print_columns(header: Sequence[Text], rows: Iterable[Sequence[Text]], widths: Sequence[int]) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, COLUMN_GAP, 0, 0))
    for column, width in zip(header, widths, strict=True):
        table.add_column(column, width=width)
    for row in rows:
        table.add_row(*row)
    output_console().print(table)


def _print_stacked(rows: Iterable[Sequence[Text]], titles: int) -> None:
    for row in rows:
        title = Text(" ").join(cell for cell in row[:titles] if cell)
        output_console().print(title, soft_wrap=True)
        if rest := ", ".join(cell.plain for cell in row[titles:] if cell):
            print_paragraph(rest, len(title.plain) - len(title.plain.lstrip()) + 4)
