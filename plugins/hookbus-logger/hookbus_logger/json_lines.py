"""Crash-safe JSON lines file. Independent of the event bus."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from bisect import bisect_right
from collections.abc import Callable, Mapping
from io import FileIO
from pathlib import Path
from typing import Any, NoReturn

from hookbus.checkpoint.file_system import fsync_file

__all__ = ["JsonLines", "read_jsonl"]

Row = dict[str, Any]

_encode = json.JSONEncoder(allow_nan=False, ensure_ascii=False).encode


class JsonLines:
    """File with one JSON object per line, open for appending.

    Each row is written in one unbuffered call. Opening the file removes an incomplete last line, which a process killed
    during a write leaves. Rows of one moment are sorted by their keys, in whatever order they are written.

    Args:
        path: Path of the file; the file and its directory are created if they do not exist.

    Attributes:
        path: Path of the file.
        rows: Number of rows in the file.

    Raises:
        OSError: If the file cannot be opened for writing.
    """

    rows: int
    _file: FileIO
    _moment: object
    _moment_offset: int
    _keys: list[Any]
    _lines: list[bytes]

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open()

    def write(self, row: Mapping[str, Any], *, moment: object = None, key: Any = 0) -> None:
        """Add a row.

        Args:
            row: JSON-serializable values.
            moment: Group to which the row belongs. Consecutive rows with an equal moment are sorted by their keys.
            key: Sort key within the moment; rows with equal keys keep the order in which they are written.

        Raises:
            ValueError: If a value is NaN or infinite.
            TypeError: If a value is not JSON-serializable.
            OSError: If the row cannot be written; the file keeps its previous content. If the file was deleted, the
                error is raised once and the next row starts a new file.
        """
        # A lone surrogate (from a file name, for example) has no UTF-8 encoding; as an escape it is valid JSON.
        line = f"{_encode(row)}\n".encode("utf-8", "backslashreplace")
        size = self._get_size()
        if moment != self._moment:
            self._start_moment(moment, size)
        index = bisect_right(self._keys, key)
        if index < len(self._lines):
            # The lines of the moment are rewritten in one call. A process killed in between loses at most these rows,
            # and a resumed run writes them again.
            self._file.truncate(self._moment_offset)
            self._append(b"".join([*self._lines[:index], line, *self._lines[index:]]), self._moment_offset)
        else:
            self._append(line, size)
        self._keys.insert(index, key)
        self._lines.insert(index, line)
        self.rows += 1

    def moment(self) -> tuple[object, list[Any]]:
        """Return the current moment and the keys of its rows; None and an empty list if it is closed."""
        return self._moment, list(self._keys)

    def reopen_moment(self, moment: object, keys: list[Any]) -> None:
        """Continue a moment with the last rows of the file.

        Args:
            moment: Moment of these rows.
            keys: Sort keys of these rows, one per row, in ascending order.
        """
        content = self.path.read_bytes()
        self._moment, self._keys = moment, list(keys)
        self._lines = content.splitlines(keepends=True)[-len(keys) :]
        self._moment_offset = len(content) - sum(map(len, self._lines))

    def close_moment(self) -> None:
        """Close the current moment; later rows are appended after it."""
        self._start_moment(None, os.fstat(self._file.fileno()).st_size)

    def filter_rows(self, predicate: Callable[[int, Row], bool]) -> None:
        """Remove the rows that do not match a predicate.

        Args:
            predicate: Predicate called with the number of a row, counted from 0, and the row; {} for a line that is
                not a JSON object.
        """
        lines = self.path.read_bytes().splitlines(keepends=True)
        remaining = [line for number, line in enumerate(lines) if predicate(number, _parse_row(line))]
        if len(remaining) == len(lines):
            return
        # A temporary file, fsync and rename: a crash leaves either the old file or the new one, never a mixture.
        temporary = self.path.with_name(f".{self.path.name}.tmp")
        with open(temporary, "wb") as file:
            file.writelines(remaining)
            file.flush()
            fsync_file(file.fileno(), temporary)
        self.close()
        os.replace(temporary, self.path)
        self._open()

    def close(self) -> None:
        """Close the file; a no-op if it is closed."""
        self._file.close()

    def _open(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115 - closed in `close`
        content = self.path.read_bytes()
        complete = content.rfind(b"\n") + 1
        if complete < len(content):
            self._file.truncate(complete)
        self.rows = content.count(b"\n")
        self.close_moment()

    def _start_moment(self, moment: object, size: int) -> None:
        self._moment, self._moment_offset = moment, size
        self._keys, self._lines = [], []

    def _append(self, data: bytes, before: int) -> None:
        rest = data
        try:
            while rest:
                # An unbuffered write may accept only a part of the data, on a nearly full disk for example.
                rest = rest[self._file.write(rest) :]
        except BaseException:
            # A KeyboardInterrupt must not leave half a line either: the next row would be appended to it.
            with contextlib.suppress(OSError):
                self._file.truncate(before)
            raise

    def _get_size(self) -> int:
        state = os.fstat(self._file.fileno())
        # Writes to a deleted file succeed on POSIX and are lost; a link count of zero is the only sign of it.
        if state.st_nlink:
            return state.st_size
        self.close()
        self._open()
        raise FileNotFoundError(errno.ENOENT, "the file was deleted while it was open", str(self.path))


def read_jsonl(path: str | Path) -> list[Row]:
    """Load the rows of a JSON lines file. An incomplete last line is skipped.

    Args:
        path: Path of the file.

    Returns:
        One dictionary per line.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If a line is not an object in strict JSON (without NaN and Infinity); the message contains the
            line number.
    """
    lines = Path(path).read_bytes().split(b"\n")[:-1]
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line, parse_constant=_reject_constant)
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: invalid JSON: {error}.") from None
        if not isinstance(row, dict):
            raise ValueError(f"{path}, line {number}: expected a JSON object, got {type(row).__name__}.")
        rows.append(row)
    return rows


def _reject_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")


def _parse_row(line: bytes) -> Row:
    try:
        row = json.loads(line)
    except ValueError:
        return {}
    return row if isinstance(row, dict) else {}
