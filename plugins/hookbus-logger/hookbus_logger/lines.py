"""A file of JSON lines that survives a kill at any instant. Knows nothing of trainings."""

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

__all__ = ["JsonLines", "read_jsonl"]

Row = dict[str, Any]

_encode = json.JSONEncoder(allow_nan=False, ensure_ascii=False).encode


class JsonLines:
    """A file with one JSON object per line, open for appending.

    Each row is written at once and whole; a torn last line, which a kill in the middle of a write has left, is cut off
    when the file is opened. Rows of one moment stand in the order of their keys, whatever the order in which they come.

    Args:
        path: the file; it and its directory are made if they are not there.

    Attributes:
        path: the file.
        rows: how many rows there are.

    Raises:
        OSError: the file cannot be written.
    """

    rows: int
    _file: FileIO
    _moment: object
    _begin: int
    _keys: list[Any]
    _lines: list[bytes]

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open()

    def write(self, row: Mapping[str, Any], *, moment: object = None, key: Any = 0) -> None:
        """Add a row.

        Args:
            row: plain values; NaN and infinities are refused.
            moment: what it belongs to. As long as this stays the same, rows are kept in the order of their keys.
            key: its place among the rows of the moment; equal ones stand in the order in which they came.

        Raises:
            ValueError: a value is NaN or infinite.
            TypeError: a value is not plain.
            OSError: it could not be written; the file is as it was before. One that was removed meanwhile is told
                once, and begun again.
        """
        line = f"{_encode(row)}\n".encode("utf-8", "backslashreplace")
        size = self._size()
        if moment != self._moment:
            self._begin_moment(moment, size)
        place = bisect_right(self._keys, key)
        if place < len(self._lines):
            self._file.truncate(self._begin)
            self._append(b"".join([*self._lines[:place], line, *self._lines[place:]]), self._begin)
        else:
            self._append(line, size)
        self._keys.insert(place, key)
        self._lines.insert(place, line)
        self.rows += 1

    def moment(self) -> tuple[object, list[Any]]:
        """What the newest rows belong to, and their keys; None and no keys where nothing can come between them."""
        return self._moment, list(self._keys)

    def reopen_moment(self, moment: object, keys: list[Any]) -> None:
        """The newest rows belong to a moment to which more will come.

        Args:
            moment: what they belong to.
            keys: theirs, in order.
        """
        content = self.path.read_bytes()
        self._moment, self._keys = moment, list(keys)
        self._lines = content.splitlines(keepends=True)[-len(keys) :]
        self._begin = len(content) - sum(map(len, self._lines))

    def close_moment(self) -> None:
        """What is there stays where it is; rows that come later stand behind it."""
        self._begin_moment(None, os.fstat(self._file.fileno()).st_size)

    def keep(self, wanted: Callable[[int, Row], bool]) -> None:
        """Cut away the rows that are not wanted: the file is replaced by one without them.

        Args:
            wanted: given the number of a row, from 0, and the row; {} for a line that is not JSON.
        """
        lines = self.path.read_bytes().splitlines(keepends=True)
        kept = [line for i, line in enumerate(lines) if wanted(i, _row_in(line))]
        if len(kept) == len(lines):
            return
        temporary = self.path.with_name(f".{self.path.name}.tmp")
        with open(temporary, "wb") as file:
            file.writelines(kept)
            file.flush()
            os.fsync(file.fileno())
        self.close()
        os.replace(temporary, self.path)
        self._open()

    def close(self) -> None:
        """Close the file. May be called twice."""
        self._file.close()

    def _open(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115 - it stays open until `close`
        content = self.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            self._file.truncate(whole)
        self.rows = content.count(b"\n")
        self.close_moment()

    def _begin_moment(self, moment: object, size: int) -> None:
        self._moment, self._begin = moment, size
        self._keys, self._lines = [], []

    def _append(self, data: bytes, before: int) -> None:
        rest = data
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except BaseException:
            with contextlib.suppress(OSError):
                self._file.truncate(before)
            raise

    def _size(self) -> int:
        state = os.fstat(self._file.fileno())
        if state.st_nlink:
            return state.st_size
        self.close()
        self._open()
        raise FileNotFoundError(errno.ENOENT, "it was removed while it was written", str(self.path))


def read_jsonl(path: str | Path) -> list[Row]:
    """The rows of a file of JSON lines. A torn last line, as a kill leaves it, is left out.

    Args:
        path: the file.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a line is not an object of strict JSON (NaN and Infinity are not); the message names the line.
    """
    lines = Path(path).read_bytes().split(b"\n")[:-1]
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line, parse_constant=_refuse)
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: this is not strict JSON: {error}") from None
        if not isinstance(row, dict):
            raise ValueError(f"{path}, line {number}: a row is an object, and this is a {type(row).__name__}.")
        rows.append(row)
    return rows


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number in JSON")


def _row_in(line: bytes) -> Row:
    try:
        row = json.loads(line)
    except ValueError:
        return {}
    return row if isinstance(row, dict) else {}
