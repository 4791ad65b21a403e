"""Thread that writes to a backend, with a bounded queue. Independent of training.

The training thread only appends entries to the queue. Periodically the writer's thread writes all queued entries and
flushes the writer. If the backend is not available (an OSError), the writer is abandoned, and after a pause a new one
is created and gets all entries since the last flush. If a flush raises any other error, writing the same entries again
would fail again, so they are dropped and counted. If the queue is full, entries other than numbers are dropped first.
"""

from __future__ import annotations

import errno
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from hookbus.errors import format_error
from hookbus.writers.writer import Writer

__all__ = ["NUMBERS", "Entry", "Report", "Write", "WriterThread"]

MAX_PAUSE_SECONDS = 60.0
"""Maximum number of seconds between two attempts after an error."""

NUMBERS = "numbers"
"""Type of the entries that are dropped last if the queue is full."""

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


class WriterThread:
    """Daemon thread that writes the entries of a queue to a backend.

    Args:
        limit: Maximum size of the queued entries in bytes.
        period: Seconds between two rounds of writing.
        pause: Seconds before the first retry after an error; doubled after each further error, up to a minute.

    Attributes:
        dropped: Number of entries that were dropped, by type.
        first_error: Message of the first error, without a period at the end; "" if there was no error.
    """

    def __init__(self, *, limit: int, period: float, pause: float) -> None:
        self._limit, self._period, self._first_pause = limit, period, pause
        self._lock = threading.Lock()
        self._queue: deque[Entry] = deque()
        # Entries that are written but not flushed: a new writer gets them again.
        self._unflushed: list[Entry] = []
        self._bytes = 0
        self._failures = 0
        self._open_writer: Callable[[], Writer]
        self._writer: Writer | None = None
        self._close_requested, self._timed_out = threading.Event(), False
        self._thread: threading.Thread | None = None
        self.dropped: Counter[str] = Counter()
        self.first_error = ""

    # -- training thread -----------------------------------------------------------------------

    def start(self, open_writer: Callable[[], Writer], name: str) -> None:
        """Start the thread, which also writes the entries that were queued before. Idempotent.

        Args:
            open_writer: Creates the writer, on this thread; called again after an error.
            name: Name of the thread.
        """
        if self._thread is None:
            self._open_writer = open_writer
            # A daemon thread, so that a backend that blocks does not prevent the interpreter from exiting.
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()

    def enqueue(self, entry: Entry) -> None:
        """Append an entry to the queue, without blocking. If the queue is full, entries are dropped and counted."""
        with self._lock:
            self._queue.append(entry)
            self._bytes += entry.size
            # An entry larger than the limit is written if it is alone.
            while self._bytes > self._limit and len(self._queue) > 1:
                self._drop(self._drop_candidate())

    def close(self, timeout: float, note: str = "") -> None:
        """Write the queued entries and join the thread. Idempotent.

        Args:
            timeout: Timeout in seconds; after it, all entries that are not written count as lost.
            note: Note for the message of a timeout, about records that the backend has buffered.
        """
        self._close_requested.set()
        if self._thread is None:
            self.record_error("the run ended before anything could be written")
        else:
            self._thread.join(timeout)
            if self._thread.is_alive():
                self.record_error(f"the backend timed out after {timeout:g} s{note and f'; {note}'}")
        with self._lock:
            # The thread may still be running: it must not write entries that were counted as lost.
            self._timed_out = True
            self.dropped.update(entry.kind for entry in [*self._unflushed, *self._queue])
            self._unflushed, self._queue = [], deque()

    def record_error(self, message: str) -> None:
        """Store the message of an error, if it is the first one."""
        self.first_error = self.first_error or message

    def _drop_candidate(self) -> Entry:
        """Return the oldest entry that is not of type `NUMBERS`, or else the oldest entry."""
        return next((entry for entry in self._queue if entry.kind != NUMBERS), self._queue[0])

    def _drop(self, entry: Entry) -> None:
        self._queue.remove(entry)
        self._bytes -= entry.size
        self._count_dropped(entry, "the backend is slower than training")

    def _count_dropped(self, entry: Entry, message: str) -> None:
        self.dropped[entry.kind] += 1
        self.record_error(message)

    # -- writer's thread -----------------------------------------------------------------------

    def _run(self) -> None:
        while not self._close_requested.wait(self._get_pause()):
            self._write_queued()
        self._write_queued()
        self._close_writer()

    def _get_pause(self) -> float:
        if not self._failures:
            return self._period
        return min(MAX_PAUSE_SECONDS, self._first_pause * 2.0 ** (self._failures - 1))

    def _write_queued(self) -> None:
        """Write and flush the queued entries, after those that an error left unflushed."""
        try:
            unflushed, self._unflushed = self._unflushed, []
            with self._lock:
                # Back to the front of the queue, in the original order.
                self._queue.extendleft(reversed(unflushed))
                # Entries queued during this round are written in the next one, so that each round is flushed.
                count = len(self._queue)
            if self._writer is None:
                self._writer = self._open_writer()
            for _ in range(count):
                self._write_next(self._writer)
            self._flush(self._writer)
        except BaseException as error:  # a SystemExit of a backend would end the thread silently
            self._handle_error(error)

    def _flush(self, writer: Writer) -> None:
        try:
            writer.flush()
        except OSError:
            raise
        except Exception as error:
            for entry in self._unflushed:
                self._count_dropped(entry, format_error(error))
            self._release_flushed()
            raise
        self._release_flushed()
        self._failures = 0

    def _write_next(self, writer: Writer) -> None:
        with self._lock:
            if not self._queue or self._timed_out:
                return
            entry = self._queue.popleft()
            self._unflushed.append(entry)
        try:
            if entry.write is None:
                entry.write = entry.prepare(lambda error: self._count_dropped(entry, format_error(error)))
            writer.time = entry.time
            entry.write(writer)
        except OSError as error:
            # A name that is too long fails at every attempt.
            if error.errno != errno.ENAMETOOLONG:
                raise
            self._report_unwritable(entry, error)
        except Exception as error:
            self._report_unwritable(entry, error)

    def _report_unwritable(self, entry: Entry, error: Exception) -> None:
        """Drop an entry that cannot be written at any time."""
        with self._lock:
            self._unflushed.remove(entry)
            self._bytes -= entry.size
            self._count_dropped(entry, format_error(error))

    def _release_flushed(self) -> None:
        """Release the entries written since the last flush, which are not written again."""
        with self._lock:
            self._bytes -= sum(entry.size for entry in self._unflushed)
            self._unflushed = []

    def _handle_error(self, error: BaseException) -> None:
        self._failures += 1
        self.record_error(format_error(error))
        writer, self._writer = self._writer, None
        if writer is not None:
            _call_suppressed(writer.abandon)

    def _close_writer(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            try:
                writer.close()
            except BaseException as error:
                self.record_error(format_error(error))


def _call_suppressed(call: Callable[[], object]) -> None:
    """Call a function and suppress all exceptions."""
    # Abandoning a writer of an unavailable backend often fails as well; the first error is already stored.
    try:
        call()
    except BaseException:
        return
