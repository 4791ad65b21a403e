"""`history.jsonl`: the rows of the history of a run in its work directory, one JSON object per line."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from hookbus._utils.files import get_reason, open_for_writing, open_regular_file, parse_json
from hookbus.checkpoint.atomic_files import atomic_write
from hookbus.errors import HookbusError, format_path

Row = dict[str, Any]

HISTORY = "history.jsonl"

KINDS = ("epoch", "validation", "test", "end")
COUNTS = ("epoch", "iteration", "step")
MAX_COUNT = 2**53
"""Largest count: larger integers are not exact as a float."""
FIRST_COLUMNS = ("kind", *COUNTS, "seconds")
"""Values that each row has."""

SPELLED = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
"""Values that JSON numbers cannot express, as strings."""

MAX_LINE_BYTES = 1 << 20
MAX_PROBLEMS = 10


class HistoryFile:
    """File of a history. The last row may be written again with more values.

    Args:
        path: Path of the file.
        run: ID of the run, for the names of temporary files.

    Attributes:
        path: Path of the file.
    """

    def __init__(self, path: Path, run: str) -> None:
        self.path, self._run = path, run
        # Of the rows that this process has written: their number, and where the last one begins and ends.
        self._count = self._begin = self._end = 0

    def write(self, rows: Sequence[Row]) -> None:
        """Write the last row, which is new or has more values; all rows if the file does not contain the others.

        Args:
            rows: All rows.

        Raises:
            OSError: If the rows cannot be written; the next call then replaces the file.
        """
        count, self._count = self._count, 0
        if count and count in (len(rows), len(rows) - 1) and self._has_size(self._end):
            line = format_row(rows[-1])
            begin = self._begin if count == len(rows) else self._end
            self._overwrite(begin, line)
        else:
            lines = [format_row(row) for row in rows]
            content, line = b"".join(lines), lines[-1] if lines else b""
            atomic_write(self.path, lambda file: file.write(content), run=self._run)
            begin = len(content) - len(line)
        self._count, self._begin, self._end = len(rows), begin, begin + len(line)

    def _has_size(self, size: int) -> bool:
        """Return whether the file is still the one that was written: not removed, replaced or changed."""
        try:
            return not self.path.is_symlink() and self.path.stat().st_size == size
        except OSError:
            return False

    def _overwrite(self, offset: int, content: bytes) -> None:
        """Write the end of the file; a process that is killed in between leaves complete lines before it."""
        with open(self.path, "r+b", buffering=0, opener=open_for_writing) as file:
            file.seek(offset)
            rest = content
            while rest:  # an unbuffered write may accept only a part of the data
                rest = rest[file.write(rest) :]
            file.truncate()


def format_row(row: Row) -> bytes:
    """Return a row as a line: NaN and infinite values as strings, since JSON has no such numbers."""
    return f"{json.dumps(spell_values(row), ensure_ascii=False, allow_nan=False)}\n".encode("utf-8", "backslashreplace")


def spell_values(row: Row) -> Row:
    """Return a row with NaN and infinite values as strings."""
    return {name: _to_json(value) for name, value in row.items()}


def read_rows(path: Path) -> tuple[list[Row], list[str]]:
    """Return the rows of a history, and a message for each damaged line, which is skipped.

    A last line without a line break, as a killed process leaves it, is skipped without a message.

    Args:
        path: Path of the file, whose content is not trusted.

    Raises:
        HookbusError: If the file does not exist or cannot be read.
    """
    rows: list[Row] = []
    problems: list[str] = []
    try:
        with open_regular_file(path) as file:
            for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES), b""), start=1):
                try:
                    if line.strip():
                        rows.append(parse_row(line))
                except ValueError as error:
                    if line.endswith(b"\n") or len(line) == MAX_LINE_BYTES:
                        problems.append(f"{format_path(path)}:{number}: {error}. The line is skipped.")
    except OSError as error:
        raise HookbusError(f"{format_path(path)}: the history cannot be read: {get_reason(error)}.") from error
    return rows, _shorten(problems, path)


def parse_row(line: bytes) -> Row:
    """Return the row in a line.

    Raises:
        ValueError: If the line is not a row.
    """
    row = parse_json(line)
    if not isinstance(row, dict):
        raise ValueError(f"not a row of a history: expected an object, got {type(row).__name__}")
    if row.get("kind") not in KINDS:
        raise ValueError(f"not a row of a history: `kind` must be one of {', '.join(KINDS)}, got {row.get('kind')!r}")
    for name in COUNTS:
        value = row.get(name)
        if type(value) is not int or not 0 <= value <= MAX_COUNT:
            raise ValueError(f"`{name}` must be an integer from 0 to {MAX_COUNT}, got {str(value)[:80]}")
    if not isinstance(row.get("seconds"), (int, float)) or isinstance(row["seconds"], bool):
        raise ValueError(f"`seconds` must be a number, got {str(row.get('seconds'))[:80]}")
    return {name: value if name == "kind" else _parse_value(name, value) for name, value in row.items()}


def find_rows(directories: Iterable[Path], is_own: Callable[[Path], bool]) -> tuple[list[Row], list[str]]:
    """Return the rows and the problems of the first directory that has a history of the run.

    Args:
        directories: Directories to search.
        is_own: Function that returns whether the files in a directory are those of the run.
    """
    for directory in directories:
        path = directory / HISTORY
        if os.path.lexists(path) and is_own(directory):
            try:
                return read_rows(path)
            except HookbusError as error:
                return [], [str(error)]
    return [], []


def _parse_value(name: str, value: object) -> object:
    if value is None or isinstance(value, float):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MAX_COUNT:
        return value
    if isinstance(value, str) and value in SPELLED:
        return SPELLED[value]
    raise ValueError(f"{name!r} must be a number, got {str(value)[:80]!r}")


def _to_json(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _shorten(problems: list[str], path: Path) -> list[str]:
    more = len(problems) - MAX_PROBLEMS
    return [*problems[:MAX_PROBLEMS], *([f"{format_path(path)}: {more:,} more lines are damaged."] if more > 0 else [])]
