"""Entries of the queue of a `WriterHook`: created on the training thread, prepared on the writer's thread."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from hookbus._utils.redaction import escape_surrogates
from hookbus.writers.host_copies import to_number
from hookbus.writers.writer import RecordKey, Writer

NUMBERS = "numbers"
"""Type of the entries that are dropped last if the queue is full."""

OUTCOMES = "outcomes"
"""Type of the entry that is written last, again by each writer that is created at the end."""

Write = Callable[[Writer], None]
Report = Callable[[Exception], None]


@dataclass(slots=True)
class Entry:
    """Queued data.

    Attributes:
        kind: Type in the plural, for messages: numbers, images, ...
        prepare: Called once on the writer's thread, with a function that reports values that cannot be written.
            Returns a function that writes the entry and may be called again after an error.
        size: Approximate size in bytes.
        time: Creation time in seconds since the epoch.
        write: Return value of `prepare`; None before it was called.
    """

    kind: str
    prepare: Callable[[Report], Write]
    size: int = 100
    time: float = field(default_factory=time.time)
    write: Write | None = None


RECORD_TYPES = {
    "image": ("images", Writer.write_image.__name__),
    "histogram": ("histograms", Writer.write_histogram.__name__),
    "text": ("texts", Writer.write_text.__name__),
}
"""Plural in messages and method of `Writer`, by type of record."""


MAX_RECENT_NUMBERS = 500
"""Maximum number of recent numbers in a checkpoint, which a kill may lose before they are written."""

Numbers = Mapping[str, Callable[[], Any]]
"""Functions that return a number, by full name; to be called on the writer's thread."""


class RecentRecords:
    """The most recent numbers and their steps, for writing them again after a kill."""

    def __init__(self) -> None:
        self._records: deque[tuple[int, Numbers]] = deque()
        self._count = 0

    def __iter__(self) -> Iterator[tuple[int, Numbers]]:
        return iter(self._records)

    def add(self, step: int, values: Numbers) -> None:
        """Add the numbers of one step, and drop the oldest above the limit."""
        self._records.append((step, values))
        self._count += len(values)
        # The last record is kept even if it exceeds the limit alone.
        while len(self._records) > 1 and self._count > MAX_RECENT_NUMBERS:
            self._count -= len(self._records.popleft()[1])

    def to_builtin(self) -> list[Any]:
        """Return steps and numbers as built-in Python types; values that are not numbers become strings."""
        return [[step, {name: _to_builtin(read()) for name, read in values.items()}] for step, values in self]


class WrittenSteps:
    """Steps of the records that are already written, so that no record is written twice or out of order."""

    def __init__(self) -> None:
        self._last_steps: dict[tuple[str, str], int] = {}
        self._existing: frozenset[RecordKey] = frozenset()
        self._step = -1

    def initialize(self, existing: Iterable[RecordKey], step: int) -> None:
        """Initialize with the existing records of a backend and the step that the run resumes from."""
        self._existing, self._step = frozenset(existing), step
        for kind, name, at in self._existing:
            # Backends that cannot delete may contain records of steps after the checkpoint.
            if at <= step:
                self._last_steps[kind, name] = max(at, self._last_steps.get((kind, name), at))

    def try_add(self, kind: str, name: str, step: int) -> bool:
        """Return whether a record is to be written; if so, it counts as written.

        Raises:
            ValueError: If a record of a later step was written under this name.
        """
        newest = self._last_steps.get((kind, name))
        if newest is not None and step < newest:
            # A recent number of the checkpoint, which is written again in case a kill lost it.
            if step < self._step:
                return False
            raise ValueError(f"{name!r}: steps must increase, got step {step} after step {newest}")
        self._last_steps[kind, name] = step
        return step != newest and (kind, name, step) not in self._existing


class EntryFactory:
    """Factory of entries under the names of a backend, one entry per name and step.

    Args:
        backend_name: Function that returns the name that the backend stores for a name.
        written: Steps that are already written.
    """

    def __init__(self, backend_name: Callable[[str], str], written: WrittenSteps) -> None:
        self._backend_name, self._written = backend_name, written

    def make_numbers(self, values: Numbers, step: int) -> Entry:
        """Create an entry for the numbers of one step. Values that are not numbers are reported and skipped."""
        return Entry(NUMBERS, partial(self._prepare_numbers, values, step), 100 * len(values))

    def make_record(self, kind: str, name: str, step: int, read: Callable[[], Any], size: int, *more: Any) -> Entry:
        """Create an entry for an image, histogram or text.

        Args:
            kind: "image", "histogram" or "text".
            name: Full name.
            step: Number of optimizer steps.
            read: Returns the value; called on the writer's thread.
            size: Approximate size in bytes.
            more: Further arguments of the method of `Writer`.
        """
        plural, method = RECORD_TYPES[kind]

        def prepare(_: Report) -> Write:
            value, backend_name = _call_with_name(read, name), self._backend_name(escape_surrogates(name))
            if not self._written.try_add(kind, backend_name, step):
                return _no_op
            return lambda writer: getattr(writer, method)(backend_name, value, step, *more)

        return Entry(plural, prepare, size)

    def make_file(self, path: Path, name: str | None) -> Entry:
        """Create an entry for a file. A file that does not exist when it is written is reported."""
        return Entry("files", lambda _: partial(_write_file, path=path, name=name))

    def _prepare_numbers(self, values: Numbers, step: int, report: Report) -> Write:
        numbers: dict[str, float] = {}
        for name, read in values.items():
            try:
                number = _call_with_name(partial(_read_number, read), name)
                backend_name = self._backend_name(escape_surrogates(name))
                if self._written.try_add("scalar", backend_name, step):
                    numbers[backend_name] = number
            except Exception as error:
                report(error)
        return (lambda writer: writer.write_scalars(numbers, step)) if numbers else _no_op


def _to_builtin(value: Any) -> float | str:
    # An invalid value must not prevent a checkpoint; it is reported when the entry is prepared.
    try:
        return to_number(value)
    except Exception:
        return str(value)


def _read_number(read: Callable[[], Any]) -> float:
    return to_number(read())


def _call_with_name(read: Callable[[], Any], name: str) -> Any:
    """Call a function, and prefix the message of an exception with a name."""
    try:
        return read()
    except Exception as error:
        error.args = (f"{name!r}: {error}",)
        raise


def _no_op(writer: Writer) -> None:
    """Write nothing, for a record that is already written."""


def _write_file(writer: Writer, path: Path, name: str | None) -> None:
    # A ValueError, since an OSError would cause a retry.
    if not path.is_file():
        raise ValueError(f"{path}: file does not exist")
    writer.write_artifact(path, name)
