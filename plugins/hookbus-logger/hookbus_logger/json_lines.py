"""Crash-safe JSON lines file. Independent of the event bus."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from hookbus.checkpoint import atomic_write
from hookbus.writers import open_regular_file
from hookbus_logger.log_file import LogFile

Row = dict[str, Any]

MAX_SEARCHED_LINES, MAX_SEARCHED_BYTES = 1000, 16 << 20
"""Number of lines, and their maximum size in bytes, in which `contains_line` searches."""

_encode = json.JSONEncoder(allow_nan=False, ensure_ascii=False).encode


class LogPosition(NamedTuple):
    """Position in a log at the time of a checkpoint.

    Attributes:
        rows: Number of rows.
        moment: Moment of the newest rows; None if it is closed.
        keys: Sort keys of the rows of this moment.
        name: Name of the file; "" in checkpoints of earlier versions.
        first: Digest of the first row, see `JsonLines.first`; None in checkpoints of earlier versions.
    """

    rows: int
    moment: object
    keys: list[Any]
    name: str = ""
    first: str | None = None

    def is_in(self, path: Path) -> bool:
        """Return whether a file is the log of this position, according to its content."""
        return bool(self.first) and contains_line(path, str(self.first))


class JsonLines(LogFile):
    """File with one JSON object per line, open for appending.

    Each row is written in one unbuffered call, also if it is inserted before other rows: a process that is killed
    leaves the rows before or after the call. Opening the file removes an incomplete last line, and separates the file
    from its hard links. Rows of one moment are sorted by their keys, in whatever order they are written.

    Args:
        path: Path of the file; the file and its directory are created if they do not exist.
        run: ID of the run that owns the file, for the names of temporary files.

    Attributes:
        path: Path of the file.
        rows: Number of rows in the file.
        first: Digest of the first row, which identifies the file; "" if it has none.

    Raises:
        OSError: If the file cannot be opened for writing, is not a regular file, or is a symbolic link.
    """

    rows: int
    first: str
    _moment: object
    _moment_offset: int
    _keys: list[Any]
    _lines: list[bytes]

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
        offset = self._moment_offset + sum(map(len, self._lines[:index]))
        self._overwrite(offset, line, b"".join(self._lines[index:]))
        self._keys.insert(index, key)
        self._lines.insert(index, line)
        self.rows += 1
        if not offset:
            self.first = _hash_line(line)

    @property
    def position(self) -> LogPosition:
        """Current position in the file."""
        return LogPosition(self.rows, self._moment, list(self._keys), self.path.name, self.first)

    def reopen_moment(self, moment: object, keys: list[Any]) -> None:
        """Continue a moment with the last rows of the file.

        Args:
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
        remaining = [line for number, line in enumerate(lines) if predicate(number, parse_row(line))]
        if len(remaining) == len(lines):
            return
        self._replace(b"".join(remaining))

    def _read(self) -> None:
        content = self._file.read()
        complete = content.rfind(b"\n") + 1
        # Another name of the file is a backup, for example of `cp -al`, and keeps its content.
        if os.fstat(self._file.fileno()).st_nlink > 1:
            self._replace(content[:complete])
            return
        if complete < len(content):
            self._file.truncate(complete)
        self.rows = content.count(b"\n")
        self.first = _hash_line(content[: content.find(b"\n") + 1]) if complete else ""
        self.close_moment()

    def _replace(self, content: bytes) -> None:
        # A temporary file, fsync and rename: a crash leaves either the old file or the new one, never a mixture.
        atomic_write(self.path, lambda file: file.write(content), run=self._run)
        self.close()
        self._open()

    def _start_moment(self, moment: object, size: int) -> None:
        self._moment, self._moment_offset = moment, size
        self._keys, self._lines = [], []

    def _overwrite(self, offset: int, line: bytes, following: bytes) -> None:
        """Write a line at an offset, and the lines that follow it after it."""
        rest = line + following
        try:
            self._file.seek(offset)
            while rest:
                # An unbuffered write may accept only a part of the data, on a nearly full disk for example.
                rest = rest[self._file.write(rest) :]
        except BaseException:
            # A KeyboardInterrupt must not leave half a line either: the next row would be appended to it. The old
            # lines need no space on a full disk.
            with contextlib.suppress(OSError):
                self._file.seek(offset)
                self._file.write(following)
            with contextlib.suppress(OSError):
                self._file.truncate(offset + len(following))
            raise


def read_jsonl(path: str | Path) -> list[Row]:
    """Load the rows of a JSON lines file. An incomplete last line is skipped.

    Args:
        path: Path of the file.

    Returns:
        One dictionary per line.

    Raises:
        FileNotFoundError: If the file does not exist.
        OSError: If the file cannot be read, or is not a regular file.
        ValueError: If a line is not an object in strict JSON (without NaN and Infinity); the message contains the
            line number.
    """
    with open_regular_file(path) as file:
        lines = file.read().split(b"\n")[:-1]
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line, parse_constant=_reject_constant)
        except (ValueError, RecursionError) as error:
            reason = "too many nested levels" if isinstance(error, RecursionError) else error
            raise ValueError(f"{path}, line {number}: invalid JSON: {reason}.") from None
        if not isinstance(row, dict):
            raise ValueError(f"{path}, line {number}: expected a JSON object, got {type(row).__name__}.")
        rows.append(row)
    return rows


def iter_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a file whose content is not trusted; lines that are not JSON objects are skipped.

    Raises:
        OSError: If the file cannot be read, is not a regular file, or is a symbolic link.
    """
    with open_regular_file(path, follow=False) as file:
        while line := file.readline(MAX_SEARCHED_BYTES):
            if row := parse_row(line):
                yield row


def parse_row(line: bytes) -> Row:
    """Return the row of a line; {} if the line is not a JSON object."""
    try:
        # Not the strict parser for untrusted files: a row may contain the escape of a lone surrogate.
        row = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return row if isinstance(row, dict) else {}


def contains_line(path: Path, digest: str) -> bool:
    """Return whether a file contains a line with a digest near its start; False if it cannot be read.

    Args:
        path: Path of the file, whose content is not trusted.
        digest: Digest of a first row, see `JsonLines.first`. Rows may have been inserted before it.
    """
    try:
        with open_regular_file(path, follow=False) as file:
            lines = (file.readline(MAX_SEARCHED_BYTES) for _ in range(MAX_SEARCHED_LINES))
            return any(_hash_line(line) == digest for line in iter(lambda: next(lines, b""), b""))
    except OSError:
        return False


def _hash_line(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()


def _reject_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")
