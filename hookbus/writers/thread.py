"""Thread that writes to a backend, with a bounded queue. Independent of training.

The training thread only appends entries to the queue. Periodically the writer's thread writes all queued entries and
flushes the writer. If the backend is not available (an OSError), the writer is abandoned, and after a pause a new one
is created and gets all entries since the last flush. If a flush raises any other error, writing the same entries again
would fail again, so they are dropped and counted. If the queue is full, entries other than numbers are dropped first.

At the end the thread writes the remaining entries and the outcome of the run, and closes the writer. If the backend is
not available, it retries until the timeout of `close`.
"""

from __future__ import annotations

import errno
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress

from hookbus.errors import RejectedRecordsError, format_error
from hookbus.writers.entries import NUMBERS, OUTCOMES, Entry
from hookbus.writers.writer import Writer

MAX_PAUSE_SECONDS = 60.0
"""Maximum number of seconds between two attempts after an error."""

MAX_REPORTED_NAMES = 10
"""Maximum number of names of rejected records in a message."""


class WriterThread:
    """Daemon thread that writes the entries of a queue to a backend.

    Args:
        limit: Maximum size of the queued entries in bytes.
        period: Seconds between two rounds of writing.
        pause: Seconds before the first retry after an error; doubled after each further error, up to a minute.

    Attributes:
        dropped: Number of entries that were dropped, by type.
        rejected: Number of values that the backend rejected, by name; they are included in `dropped`.
        first_error: Message of the first error, without a period at the end; "" if there was no error.
    """

    def __init__(self, *, limit: int, period: float, pause: float) -> None:
        self._limit, self._period, self._first_pause = limit, period, pause
        self._lock = threading.Lock()
        self._queue: deque[Entry] = deque()
        # Entries that are written but not flushed: a new writer gets them again.
        self._unflushed: list[Entry] = []
        # Entries other than numbers that failed in the last round.
        self._postponed: list[Entry] = []
        self._outcome: Entry | None = None
        self._outcome_written = False  # by the current writer
        self._bytes = 0
        self._failures = 0
        self._error: BaseException | None = None  # of the last round
        self._open_writer: Callable[[], Writer]
        self._writer: Writer | None = None
        self._close_requested, self._timed_out = threading.Event(), False
        self._deadline = 0.0
        self._thread: threading.Thread | None = None
        self.dropped: Counter[str] = Counter()
        self.rejected: Counter[str] = Counter()
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
            if entry.kind == OUTCOMES:
                self._outcome = entry
                return
            self._queue.append(entry)
            self._bytes += entry.size
            # An entry larger than the limit is written if it is alone.
            while self._bytes > self._limit and len(self._queue) > 1:
                # The oldest entry that is not of type `NUMBERS`, or else the oldest entry.
                dropped = next((other for other in self._queue if other.kind != NUMBERS), self._queue[0])
                self._queue.remove(dropped)
                self._bytes -= dropped.size
                self._count_dropped(dropped.kind, "the backend is slower than training")

    def close(self, timeout: float, get_note: Callable[[], str] = str) -> None:
        """Write the queued entries and the outcome, and join the thread. Idempotent.

        Args:
            timeout: Timeout in seconds, until which an unavailable backend is retried; after it, all entries that are
                not written count as lost.
            get_note: Returns a note for the message of a timeout, about records that the backend has buffered.
        """
        self._deadline = time.monotonic() + timeout
        self._close_requested.set()
        if self._thread is None:
            self.record_error("the run ended before anything could be written")
        else:
            self._thread.join(timeout)
            if self._thread.is_alive():
                note = get_note()
                self.record_error(f"the backend timed out after {timeout:g} s{note and f'; {note}'}")
        with self._lock:
            # The thread may still be running: it must not write entries that were counted as lost.
            self._timed_out = True
            self.dropped.update(entry.kind for entry in self._get_unwritten())
            self.dropped.update({OUTCOMES: 1} if self._outcome and not self._outcome_written else {})
            self._unflushed, self._postponed, self._queue, self._outcome = [], [], deque(), None

    def record_error(self, message: str) -> None:
        """Store the message of an error, if it is the first one."""
        self.first_error = self.first_error or message

    def describe_missing(self) -> str:
        """Return a message about the dropped entries, with their numbers and the names of rejected records."""
        counts = ", ".join(f"{count} {kind}" for kind, count in sorted(self.dropped.items()))
        total, rejected = self.dropped.total(), self._describe_rejected()
        return f"{total} records are missing: {counts}{rejected}. First: {self.first_error}"

    def _describe_rejected(self) -> str:
        names = [f"{name!r} ({count})" for name, count in sorted(self.rejected.items())]
        more = f" and {len(names) - MAX_REPORTED_NAMES} more names" if len(names) > MAX_REPORTED_NAMES else ""
        return f", of which the backend rejected {', '.join(names[:MAX_REPORTED_NAMES])}{more}" if names else ""

    def _count_dropped(self, kind: str, message: str) -> None:
        self.dropped[kind] += 1
        self.record_error(message)

    def _count_rejected(self, error: RejectedRecordsError) -> None:
        self.dropped[error.kind] += len(error.names)
        self.rejected.update(error.names)
        self.record_error(format_error(error))

    # -- writer's thread -----------------------------------------------------------------------

    def _run(self) -> None:
        while not self._close_requested.wait(self._get_pause()):
            self._write_queued()
        self._failures = 0  # the pauses start at the first one again
        while self._finish() and self._wait_for_retry():
            pass

    def _get_pause(self) -> float:
        if not self._failures:
            return self._period
        return min(MAX_PAUSE_SECONDS, self._first_pause * 2.0 ** (self._failures - 1))

    def _finish(self) -> bool:
        """Write the queued entries and the outcome, and close the writer; return whether a retry can succeed."""
        before = len(self._get_unwritten())
        self._write_queued(last=True)
        # After an error that drops entries, the next attempt writes the others.
        return self._error is not None and (isinstance(self._error, OSError) or len(self._get_unwritten()) < before)

    def _get_unwritten(self) -> list[Entry]:
        """Return the entries that are not written, in their order."""
        return [*self._unflushed, *self._postponed, *self._queue]

    def _wait_for_retry(self) -> bool:
        """Wait for the pause after an error; return False if there is no time left for another attempt."""
        remaining = self._deadline - time.monotonic()
        if self._timed_out or remaining < self._first_pause:
            return False
        # At most half of the remaining time, so that the last attempt is close to the deadline.
        time.sleep(min(self._get_pause(), remaining / 2))
        return True

    def _write_queued(self, *, last: bool = False) -> None:
        """Write and flush the queued entries, after those that an error left unflushed.

        Args:
            last: Whether the outcome is written and the writer is closed.
        """
        try:
            count = self._requeue_unflushed()
            if self._writer is None:
                self._writer, self._outcome_written = self._open_writer(), False
            error = self._write_entries(self._writer, count)
            self._flush(self._writer)
            if last:
                self._write_outcome(self._writer)
            if error is not None:
                raise error
            if last:
                self._close_writer(self._writer)
            self._failures, self._error = 0, None
        except BaseException as error:  # a SystemExit of a backend would end the thread silently
            self._handle_error(error)

    def _requeue_unflushed(self) -> int:
        """Move unflushed entries to the front of the queue, in the original order, and return its length."""
        with self._lock:
            self._queue.extendleft(reversed([*self._unflushed, *self._postponed]))
            self._unflushed, self._postponed = [], []
            # Entries queued during this round are written in the next one, so that each round is flushed.
            return len(self._queue)

    def _write_entries(self, writer: Writer, count: int) -> OSError | None:
        """Write the next entries, and return the error of an entry other than numbers.

        After such an error only numbers are written, so that an image that cannot be uploaded does not block them.
        """
        failure: OSError | None = None
        for _ in range(count):
            entry = self._take_next()
            if entry is None:
                break
            if failure is None or entry.kind == NUMBERS:
                try:
                    self._write(writer, entry)
                    continue
                except OSError as error:
                    if entry.kind == NUMBERS:
                        raise
                    failure = error
            with self._lock:
                self._unflushed.remove(entry)
                self._postponed.append(entry)
        return failure

    def _flush(self, writer: Writer) -> None:
        try:
            writer.flush()
        except OSError:
            raise
        except RejectedRecordsError as error:
            self._count_rejected(error)
        except Exception as error:
            for entry in self._unflushed:
                self._count_dropped(entry.kind, format_error(error))
            self._release_flushed()
            raise
        self._release_flushed()

    def _write_outcome(self, writer: Writer) -> None:
        if self._outcome is not None:
            self._outcome.prepare(lambda _: None)(writer)
            writer.flush()
            self._outcome_written = True

    def _close_writer(self, writer: Writer) -> None:
        try:
            writer.close()
        except BaseException:
            self._outcome_written = False
            raise
        self._outcome = self._writer = None

    def _take_next(self) -> Entry | None:
        """Move the next entry from the queue to the unflushed entries; return None after a timeout of `close`."""
        with self._lock:
            if not self._queue or self._timed_out:
                return None
            entry = self._queue.popleft()
            self._unflushed.append(entry)
        return entry

    def _write(self, writer: Writer, entry: Entry) -> None:
        try:
            if entry.write is None:
                entry.write = entry.prepare(lambda error: self._count_dropped(entry.kind, format_error(error)))
            writer.time = entry.time
            entry.write(writer)
        except OSError as error:
            # A name that is too long fails at every attempt.
            if error.errno != errno.ENAMETOOLONG:
                raise
            self._report_unwritable(entry, error)
        except RejectedRecordsError as error:
            self._count_rejected(error)
        except Exception as error:
            self._report_unwritable(entry, error)

    def _report_unwritable(self, entry: Entry, error: Exception) -> None:
        """Drop an entry that cannot be written at any time."""
        with self._lock:
            self._unflushed.remove(entry)
            self._bytes -= entry.size
            self._count_dropped(entry.kind, format_error(error))

    def _release_flushed(self) -> None:
        """Release the entries written since the last flush, which are not written again."""
        with self._lock:
            self._bytes -= sum(entry.size for entry in self._unflushed)
            self._unflushed = []

    def _handle_error(self, error: BaseException) -> None:
        self._failures, self._error = self._failures + 1, error
        self.record_error(format_error(error))
        writer, self._writer = self._writer, None
        if writer is not None:
            # Abandoning a writer of an unavailable backend often fails as well; the first error is already stored.
            with suppress(BaseException):
                writer.abandon()
