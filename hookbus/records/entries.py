"""What a `WriterHook` puts into its queue: made on the training thread, prepared on the thread of the writer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from hookbus.records.copies import number_of
from hookbus.records.names import encodable
from hookbus.records.writer_thread import NUMBERS, Entry, Report, Write
from hookbus.writers import Place, Writer

__all__ = ["Entries", "Ledger", "Recent"]

KINDS = {
    "image": ("pictures", Writer.write_image.__name__),
    "histogram": ("distributions", Writer.write_histogram.__name__),
    "text": ("texts", Writer.write_text.__name__),
}
"""By kind, what several of them are called, and the method that writes one."""


REMEMBERED = 500
"""So many numbers a checkpoint holds at most, besides the last record: a kill may lose them before they are written."""

Numbers = Mapping[str, Callable[[], Any]]
"""Numbers by full name, each to be read on the thread of the writer."""


class Recent:
    """The newest numbers, with their steps."""

    def __init__(self) -> None:
        self._records: deque[tuple[int, Numbers]] = deque()
        self._count = 0

    def __iter__(self) -> Iterator[tuple[int, Numbers]]:
        return iter(self._records)

    def add(self, step: int, values: Numbers) -> None:
        """Remember the numbers of one step, and forget the oldest."""
        self._records.append((step, values))
        self._count += len(values)
        while len(self._records) > 1 and self._count > REMEMBERED:
            self._count -= len(self._records.popleft()[1])

    def plain(self) -> list[Any]:
        """Steps and numbers as a checkpoint holds them; what is no number is a text."""
        return [[step, {name: _plain(read()) for name, read in values.items()}] for step, values in self]


class Ledger:
    """What stands where already, so that nothing is written twice, and no step goes back."""

    def __init__(self) -> None:
        self._newest: dict[tuple[str, str], int] = {}
        self._there: frozenset[Place] = frozenset()
        self._step = -1

    def begin(self, there: Iterable[Place], step: int) -> None:
        """A run goes on behind `step`, and this is what the back end holds already."""
        self._there, self._step = frozenset(there), step
        for kind, name, at in self._there:
            if at <= step:
                self._newest[kind, name] = max(at, self._newest.get((kind, name), at))

    def admit(self, kind: str, name: str, step: int) -> bool:
        """Whether a record may be written; then it counts as written.

        Raises:
            ValueError: a later one was written under this name.
        """
        newest = self._newest.get((kind, name))
        if newest is not None and step < newest:
            if step < self._step:  # it comes from a checkpoint, in case that a kill had lost it
                return False
            raise ValueError(f"{name!r} comes for step {step} after step {newest}; steps only go forward")
        self._newest[kind, name] = step
        return step != newest and (kind, name, step) not in self._there


class Entries:
    """Makes entries whose names are those of a back end, each place once.

    Args:
        stored_name: the name under which the back end has a record.
        ledger: what stands where already.
    """

    def __init__(self, stored_name: Callable[[str], str], ledger: Ledger) -> None:
        self._name, self._ledger = stored_name, ledger

    def numbers(self, values: Numbers, step: int) -> Entry:
        """Numbers of one step, by full name. What is no number is reported, and the others are written."""
        return Entry(NUMBERS, partial(self._prepare_numbers, values, step), 100 * len(values))

    def record(self, kind: str, name: str, step: int, read: Callable[[], Any], size: int, *more: Any) -> Entry:
        """A picture, a distribution or a text.

        Args:
            kind: "image", "histogram" or "text".
            name, step: where it stands.
            read: gives it, on the thread of the writer.
            size: about how many bytes it takes.
            more: further arguments of the method that writes it.
        """
        plural, method = KINDS[kind]

        def prepare(_: Report) -> Write:
            value, stored = _named(read, name), self._stored_name(name)
            if not self._ledger.admit(kind, stored, step):
                return _nothing
            return lambda writer: getattr(writer, method)(stored, value, step, *more)

        return Entry(plural, prepare, size)

    def file(self, path: Path, name: str | None) -> Entry:
        """A file. One that is gone when its turn comes is reported."""
        return Entry("files", lambda _: partial(_write_file, path=path, name=name))

    def simple(self, kind: str, write: Write) -> Entry:
        """Anything else."""
        return Entry(kind, lambda _: write)

    def _stored_name(self, name: str) -> str:
        return self._name(encodable(name))

    def _prepare_numbers(self, values: Numbers, step: int, report: Report) -> Write:
        numbers: dict[str, float] = {}
        for name, read in values.items():
            try:
                number, stored = _named(partial(_number, read), name), self._stored_name(name)
                if self._ledger.admit("scalar", stored, step):
                    numbers[stored] = number
            except Exception as error:
                report(error)
        return (lambda writer: writer.write_scalars(numbers, step)) if numbers else _nothing


def _plain(value: Any) -> float | str:
    try:
        return number_of(value)
    except Exception:
        return str(value)


def _number(read: Callable[[], Any]) -> float:
    return number_of(read())


def _named(read: Callable[[], Any], name: str) -> Any:
    """What is read; the message of what goes wrong says where."""
    try:
        return read()
    except Exception as error:
        error.args = (f"{name!r}: {error}",)
        raise


def _nothing(writer: Writer) -> None:
    """What is there already is not written again."""


def _write_file(writer: Writer, path: Path, name: str | None) -> None:
    if not path.is_file():  # an OSError would mean that another try makes sense
        raise ValueError(f"{path} is gone, or no file")
    writer.write_artifact(path, name)
