"""The one thread that feeds a back end, and the bounded queue before it. Knows nothing of trainings.

The training thread only puts entries into the queue. Every so often the thread takes what is there, writes it, and
flushes. When the back end is in trouble (an OSError) the writer is abandoned, and after a pause another one is made
and given everything since the last flush. When a flush is refused (any other error) the same would be refused again:
it is dropped and counted. Where something must go because the queue is full, pictures go first.
"""

from __future__ import annotations

import errno
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from hookbus.errors import in_one_line
from hookbus.writers import Writer

__all__ = ["NUMBERS", "Entry", "Report", "Write", "WriterThread"]

LONGEST_PAUSE = 60.0
NUMBERS = "numbers"
"""The kind of entry that goes last when the queue is full."""

Write = Callable[[Writer], None]
Report = Callable[[Exception], None]


@dataclass(slots=True)
class Entry:
    """Something to write.

    Attributes:
        kind: what it is, in the plural: numbers, pictures, ...
        prepare: called once on the thread of the feed, with what a part that cannot be written is reported to; returns
            what writes the entry, which may be called again after trouble.
        size: about how many bytes it takes.
        time: when it was made, in seconds since 1970.
        write: what `prepare` returned.
    """

    kind: str
    prepare: Callable[[Report], Write]
    size: int = 100
    time: float = field(default_factory=time.time)
    write: Write | None = None


class WriterThread:
    """Feeds a back end from a thread of its own.

    Args:
        limit: so many bytes may wait.
        period: seconds between two rounds of the thread.
        pause: seconds before it tries again after trouble; doubled with each failure, up to a minute.

    Attributes:
        lost: how many entries were never written, by kind.
        trouble: the first thing that went wrong, "" for nothing; a sentence without its end.
    """

    def __init__(self, *, limit: int, period: float, pause: float) -> None:
        self._limit, self._period, self._first_pause = limit, period, pause
        self._lock = threading.Lock()
        self._queue: deque[Entry] = deque()
        self._unsure: list[Entry] = []
        self._bytes = 0
        self._failures = 0
        self._open_writer: Callable[[], Writer]
        self._writer: Writer | None = None
        self._closing, self._gave_up = threading.Event(), False
        self._thread: threading.Thread | None = None
        self.lost: Counter[str] = Counter()
        self.trouble = ""

    # -- the side of the training --------------------------------------------------------------

    def start(self, open_writer: Callable[[], Writer], name: str) -> None:
        """Begin to write. What was put before waits until then. May be called twice.

        Args:
            open_writer: makes the writer, on the thread; called again after trouble.
            name: of the thread.
        """
        if self._thread is None:
            self._open_writer = open_writer
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()

    def put(self, entry: Entry) -> None:
        """Let an entry wait; never blocks. Where too many bytes wait, some entry is dropped and counted."""
        with self._lock:
            self._queue.append(entry)
            self._bytes += entry.size
            while self._bytes > self._limit and len(self._queue) > 1:
                self._drop(self._least_important())

    def close(self, patience: float, rest: str = "") -> None:
        """Write what waits, and end the thread. May be called twice.

        Args:
            patience: after so many seconds it is left alone, and what still waits counts as lost.
            rest: what becomes of what the back end has been given; told where it is left alone.
        """
        self._closing.set()
        if self._thread is None:
            self.note("the run ended before anything could be written")
        else:
            self._thread.join(patience)
            if self._thread.is_alive():
                self.note(f"the back end did not answer for {patience:g} s{rest and f'; {rest}'}")
        with self._lock:
            self._gave_up = True
            self.lost.update(entry.kind for entry in [*self._unsure, *self._queue])
            self._unsure, self._queue = [], deque()

    def note(self, trouble: str) -> None:
        """Something has gone wrong; the first is kept."""
        self.trouble = self.trouble or trouble

    def _least_important(self) -> Entry:
        """The oldest that holds no numbers; the oldest of all where there is none."""
        return next((entry for entry in self._queue if entry.kind != NUMBERS), self._queue[0])

    def _drop(self, entry: Entry) -> None:
        self._queue.remove(entry)
        self._bytes -= entry.size
        self._lose(entry, "the back end is slower than the training")

    def _lose(self, entry: Entry, why: str) -> None:
        self.lost[entry.kind] += 1
        self.note(why)

    # -- the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing.wait(self._pause()):
            self._round()
        self._round()
        self._end()

    def _pause(self) -> float:
        if not self._failures:
            return self._period
        return min(LONGEST_PAUSE, self._first_pause * 2.0 ** (self._failures - 1))

    def _round(self) -> None:
        """Write what is there now; trouble is noted, and what was not flushed comes again."""
        try:
            again, self._unsure = self._unsure, []
            with self._lock:
                self._queue.extendleft(reversed(again))
                count = len(self._queue)
            if self._writer is None:
                self._writer = self._open_writer()
            for _ in range(count):
                self._write_next(self._writer)
            self._flush(self._writer)
        except BaseException as error:  # a SystemExit would end the thread, and nobody would hear of it
            self._failed(error)

    def _flush(self, writer: Writer) -> None:
        try:
            writer.flush()
        except OSError:
            raise
        except Exception as error:
            for entry in self._unsure:
                self._lose(entry, in_one_line(error))
            self._flushed()
            raise
        self._flushed()
        self._failures = 0

    def _write_next(self, writer: Writer) -> None:
        with self._lock:
            if not self._queue or self._gave_up:
                return
            entry = self._queue.popleft()
            self._unsure.append(entry)
        try:
            if entry.write is None:
                entry.write = entry.prepare(lambda error: self._lose(entry, in_one_line(error)))
            writer.time = entry.time
            entry.write(writer)
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:  # that does not pass
                raise
            self._cannot(entry, error)
        except Exception as error:
            self._cannot(entry, error)

    def _cannot(self, entry: Entry, error: Exception) -> None:
        """An entry cannot be written, now or ever."""
        with self._lock:
            self._unsure.remove(entry)
            self._bytes -= entry.size
            self._lose(entry, in_one_line(error))

    def _flushed(self) -> None:
        """What was written since the last flush does not come again."""
        with self._lock:
            self._bytes -= sum(entry.size for entry in self._unsure)
            self._unsure = []

    def _failed(self, error: BaseException) -> None:
        self._failures += 1
        self.note(in_one_line(error))
        writer, self._writer = self._writer, None
        if writer is not None:
            _quietly(writer.abandon)

    def _end(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            try:
                writer.close()
            except BaseException as error:
                self.note(in_one_line(error))


def _quietly(call: Callable[[], object]) -> None:
    """What cannot be given back is not worth a second trouble."""
    try:
        call()
    except BaseException:
        return
