"""CSV file to which rows and columns are added. Independent of the event bus."""

from __future__ import annotations

import contextlib
import csv
import io
import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import IO

from hookbus.checkpoint import atomic_write
from hookbus.writers import open_regular_file
from hookbus_logger.log_file import LogFile

Row = dict[str, float]

FIRST_COLUMNS = ("epoch", "step")
"""First columns of a new file."""


class CsvFile(LogFile):
    """CSV file with a header, open for adding rows.

    The last row can be written again with further values until the next one is started. A name that is not in the
    header becomes a column: the file is rewritten atomically, row by row. Columns are in the order in which rows first
    contain them, and those of one row are sorted, in whatever order its values arrive. A row that does not have a value
    of a column has an empty cell.

    Args:
        path: Path of the file; the file and its directory are created if they do not exist.
        separator: Character between two cells.
        completes_line: Whether an existing last line without a line break gets one; otherwise the line is removed, as a
            killed process leaves it.
        run: ID of the run that owns the file, for the names of temporary files.

    Attributes:
        path: Path of the file.
        complete_columns: Number of columns that the rows before the current one have.

    Raises:
        OSError: If the file cannot be opened for writing, is not a regular file, or is a symbolic link.
        ValueError: If an existing file is not a CSV file, or has rows with more cells than its header.
    """

    complete_columns: int
    _columns: list[str]
    _rows: int
    _current: tuple[int, bytes] | None  # offset and line of the current row if the file contains it

    def __init__(self, path: Path, separator: str = ",", run: str = "", *, completes_line: bool = False) -> None:
        self._separator, self._completes_line = separator, completes_line
        super().__init__(path, run)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(self._columns)

    @property
    def complete_rows(self) -> int:
        """Number of rows before the current one."""
        return self._rows - (self._current is not None)

    def start_row(self) -> None:
        """Complete the current row; the next `write` adds one."""
        self._current, self.complete_columns = None, len(self._columns)

    def has_columns(self, row: Mapping[str, float]) -> bool:
        """Return whether the header contains the names of a row, so that writing it does not rewrite the file."""
        return {escape(name) for name in row}.issubset(self._columns)

    def write(self, *rows: Mapping[str, float]) -> None:
        """Write the current row, which replaces its earlier version, and the rows after it.

        Args:
            rows: Values by name, those of an earlier version included. The last row becomes the current one.

        Raises:
            OSError: If the rows cannot be written; the file keeps its content. If the file was deleted, the error is
                raised once and the next row starts a new file.
        """
        size = self._get_size()
        complete = self._add_columns(self._columns[: self.complete_columns], rows[:-1])
        columns = self._add_columns(complete, rows[-1:])
        lines = [self._format_row(row, columns) for row in rows]
        content = b"".join(lines)
        if columns == self._columns:
            offset, before = self._current or (size, b"")
            self._overwrite(offset, content, before)
            self._rows += len(rows) - bool(before)
        else:
            self._rewrite(self.complete_rows, columns, self.complete_columns, content)
            self._rows += len(rows)
            offset = self._get_size() - len(content)
        self.complete_columns = len(complete)
        self._current = offset + len(content) - len(lines[-1]), lines[-1]

    def truncate(self, rows: int, columns: int) -> None:
        """Remove rows and columns.

        Args:
            rows: Number of rows to keep.
            columns: Number of columns to keep, which the rows before the next one have.
        """
        if (self._rows, len(self._columns)) != (rows, columns):
            self._rewrite(min(rows, self._rows), self._columns[:columns], columns)
        self.start_row()

    def remove_rows_after(self, step: int) -> None:
        """Remove the rows of later steps, and the rows that follow them."""
        rows = enumerate(iter_rows(self.path, self._separator))
        first = next((number for number, row in rows if _is_after(row, step)), self._rows)
        self.truncate(first, len(self._columns))

    # -- internal ------------------------------------------------------------------------------

    def _read(self) -> None:
        self._end_incomplete_line()
        try:
            self._columns, self._rows = self._read_size()
        except (csv.Error, UnicodeError) as error:
            self.close()
            raise ValueError(f"{self.path} is not a CSV file: {error}.") from None
        if not self._columns:
            self._columns = [*FIRST_COLUMNS]
            self._overwrite(0, self._format(self._columns), b"")
        # Another name of the file is a backup, for example of `cp -al`, and keeps its content.
        elif os.fstat(self._file.fileno()).st_nlink > 1:
            self._rewrite(self._rows, self._columns, len(self._columns))
        self.start_row()

    @staticmethod
    def _add_columns(columns: list[str], rows: Iterable[Mapping[str, float]]) -> list[str]:
        """Return columns with the names of rows, sorted within each row."""
        names = dict.fromkeys(columns)
        for row in rows:
            names |= dict.fromkeys(sorted({escape(name) for name in row}.difference(names)))
        return [*names]

    def _format_row(self, row: Mapping[str, float], columns: Iterable[str]) -> bytes:
        cells = {escape(name): repr(value) for name, value in row.items()}
        return self._format([cells.get(name, "") for name in columns])

    def _end_incomplete_line(self) -> None:
        complete = 0
        with open_regular_file(self.path, follow=False) as file:
            for line in file:
                complete += len(line) if line.endswith(b"\n") else 0
        size = os.fstat(self._file.fileno()).st_size
        if complete < size and self._completes_line:
            self._overwrite(size, b"\n", b"")
        elif complete < size:
            self._file.truncate(complete)

    def _read_size(self) -> tuple[list[str], int]:
        """Return the header and the number of rows; [] and 0 for an empty file.

        Raises:
            csv.Error: If the header is empty, or a row has more cells than the header.
            UnicodeError: If the file is not encoded in UTF-8.
        """
        records, rows = _iter_records(self.path, self._separator), 0
        header = next(records, None)
        if header == []:
            raise csv.Error("its first line is empty")
        for rows, cells in enumerate(records, start=1):
            if len(cells) > len(header or ()):
                raise csv.Error(f"row {rows} has {len(cells)} cells, but the header has {len(header or ())}")
        return header or [], rows

    def _rewrite(self, rows: int, columns: list[str], width: int, lines: bytes = b"") -> None:
        """Replace the file by its first rows, cut to a number of cells, with other columns and further lines."""

        def write(file: IO[bytes]) -> None:
            file.write(self._format(columns))
            records = _iter_records(self.path, self._separator)
            next(records, None)
            for cells in islice(records, rows):
                file.write(self._format([*cells[:width], *[""] * (len(columns) - min(len(cells), width))]))
            file.write(lines)

        # A temporary file, fsync and rename: a crash leaves either the old file or the new one, never a mixture.
        # Windows cannot replace an open file; elsewhere, the descriptor would refer to the replaced one.
        self.close()
        try:
            atomic_write(self.path, write, run=self._run)
        finally:
            self._open_descriptor()
        self._columns, self._rows, self._current = columns, rows, None

    def _format(self, cells: Iterable[str]) -> bytes:
        text = io.StringIO()
        csv.writer(text, delimiter=self._separator, lineterminator="\n").writerow(cells)
        # A lone surrogate has no UTF-8 encoding.
        return text.getvalue().encode("utf-8", "backslashreplace")

    def _overwrite(self, offset: int, line: bytes, before: bytes) -> None:
        """Write the last lines at an offset instead of the one before."""
        try:
            self._write_last(offset, line)
        except BaseException:
            # A KeyboardInterrupt must not leave half a line either. The old line needs no space on a full disk.
            with contextlib.suppress(OSError):
                self._write_last(offset, before)
            raise

    def _write_last(self, offset: int, line: bytes) -> None:
        self._file.seek(offset)
        self._file.truncate()
        while line:
            # An unbuffered write may accept only a part of the data, on a nearly full disk for example.
            line = line[self._file.write(line) :]


def escape(name: str) -> str:
    """Return a name as it is in the header: in one line."""
    return name.replace("\r", "\\r").replace("\n", "\\n")


def iter_rows(path: Path, separator: str = ",") -> Iterator[dict[str, str]]:
    """Yield the rows of a CSV file as texts by column, without empty cells; a file that is no CSV file has none.

    Args:
        path: Path of the file, whose content is not trusted.
        separator: Character between two cells.

    Raises:
        OSError: If the file cannot be read, is not a regular file, or is a symbolic link.
    """
    records = _iter_records(path, separator)
    with contextlib.suppress(csv.Error, UnicodeError):
        columns = next(records, [])
        for cells in records:
            yield {name: cell for name, cell in zip(columns, cells, strict=False) if cell}


def _iter_records(path: Path, separator: str) -> Iterator[list[str]]:
    with open_regular_file(path, follow=False) as file, io.TextIOWrapper(file, "utf-8", newline="") as text:
        yield from csv.reader(text, delimiter=separator)


def _is_after(row: Mapping[str, str], step: int) -> bool:
    text = row.get("step", "")
    return text.isdecimal() and int(text) > step
