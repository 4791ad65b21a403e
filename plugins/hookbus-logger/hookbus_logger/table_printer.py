"""Output of the table of a run: rows below a header in a terminal, and one line per row otherwise."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from rich.cells import cell_len
from rich.console import Console
from rich.segment import Segment, Segments

from hookbus_logger.columns import ASCII_ELLIPSIS, ELLIPSIS, GAP, Column, fit_columns, format_row
from hookbus_logger.console import PIPED_WIDTH, get_line_width, is_ascii, print_line
from hookbus_logger.epoch_table import POSITION, TIME, Cell, EpochTable, Row, format_cells
from hookbus_logger.format import NONFINITE_STYLE, Part, join_groups

ROWS_PER_HEADER = 20
BEST_STYLE, HEADER_STYLE = "bold green", "bold"


class RowPrinter(Protocol):
    """Output of rows."""

    def print_row(self, row: Row) -> None:
        """Print a row."""


class TablePrinter:
    """Print rows below a header, which is repeated every 20 rows and if the columns change.

    Args:
        console: Console to print on; its current width determines the columns.
        table: Columns of the run.
    """

    def __init__(self, console: Console, table: EpochTable) -> None:
        self._console, self._table = console, table
        self._header: list[str] = []
        self._rows = 0

    def print_row(self, row: Row) -> None:
        """Print a row, below a header if necessary."""
        cells = self._table.add(row)
        ellipsis = ASCII_ELLIPSIS if is_ascii(self._console) else ELLIPSIS
        columns = fit_columns(self._table.columns, self._console.width, ellipsis)
        header = format_row(columns, {column.name: column.title for column in columns})
        if header != self._header or self._rows == ROWS_PER_HEADER:
            self._header, self._rows = header, 0
            self._print([(text, HEADER_STYLE) for text in header])
        self._rows += 1
        texts = format_row(columns, {name: cell.text for name, cell in cells.items()})
        self._print([(text, _get_style(cells.get(column.name))) for text, column in zip(texts, columns, strict=True)])

    def _print(self, cells: Iterable[Part]) -> None:
        segments: list[Segment] = []
        for text, style in cells:
            gap = " " * GAP if segments else ""
            segments += [Segment(gap), Segment(text, self._console.get_style(style) if style else None)]
        self._console.print(Segments([*segments, Segment.line()]), soft_wrap=True)


class LinePrinter:
    """Print each row on one line: the position, and names and values, separated by two spaces.

    Args:
        console: Console to print on.
        table: Columns of the run, which determine the order of the values, and which of them are omitted.
    """

    def __init__(self, console: Console, table: EpochTable) -> None:
        self._console, self._table = console, table

    def print_row(self, row: Row) -> None:
        """Print a row on one line; the least important values are omitted if the line is too long."""
        self._table.add(row)
        items = {name: _format_item(row, name, cell) for name, cell in format_cells(row).items()}
        widths = {name: cell_len("".join(text for text, _ in parts)) for name, parts in items.items()}
        columns = [
            Column(column.name, "", widths[column.name], column.rank)
            for column in self._table.columns
            if column.name in items
        ]
        width = get_line_width(self._console) or PIPED_WIDTH
        displayed = [column.name for column in fit_columns(columns, width, titled=False)]
        best: list[Part] = [("best ", "dim"), (" ".join(name for name in displayed if name in row.best), BEST_STYLE)]
        groups = [*(items[name] for name in displayed), best if row.best.intersection(displayed) else []]
        print_line(self._console, *join_groups(*groups, width=width))


def _format_item(row: Row, name: str, cell: Cell) -> list[Part]:
    """Return the name and the value of a cell, without an asterisk."""
    label = {POSITION: row.unit, TIME: TIME}.get(name, name)
    return [(f"{label} ", "" if name == POSITION else "dim"), (cell.text.lstrip("*"), _get_style(cell))]


def _get_style(cell: Cell | None) -> str:
    if cell is None:
        return ""
    return BEST_STYLE if cell.is_best else "" if cell.is_finite else NONFINITE_STYLE
