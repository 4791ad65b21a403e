"""Tests of the thread that writes to a backend, and of its bounded queue."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from hookbus.writers.thread import Entry, WriterThread
from hookbus.writers.writer import Writer


class UnreliableWriter(Writer):
    """Writer that raises the given errors, one per write; all writers of a test share the list of flushed records."""

    def __init__(self, flushed: list[Any], failures: Iterator[BaseException | None]) -> None:
        self.flushed, self.failures = flushed, failures
        self.unflushed: list[Any] = []
        self.closed = 0

    def write_scalar(self, name: str, value: Any, step: int) -> None:
        if (failure := next(self.failures, None)) is not None:
            raise failure
        self.unflushed.append((name, step, value))

    def write_image(self, name: str, image: Any, step: int, caption: str | None = None) -> None: ...

    def write_config(self, config: Mapping[str, Any]) -> None: ...

    def flush(self) -> None:
        self.flushed += self.unflushed
        self.unflushed = []

    def abandon(self) -> None:
        self.unflushed = []

    def close(self) -> None:
        self.closed += 1


DISK_FULL = OSError(errno.ENOSPC, "No space left on device")


def make_number(step: int) -> Entry:
    return Entry("numbers", lambda _: lambda writer: writer.write_scalar("a", 0.0, step))


def make_thread(limit: int = 10**6) -> WriterThread:
    return WriterThread(limit=limit, period=0.001, pause=0.001)


def write_all(
    entries: list[Entry], failures: list[BaseException | None], limit: int = 10**6
) -> tuple[WriterThread, list[int]]:
    """Write entries that are queued before the thread starts, and return the thread and the flushed steps."""
    flushed: list[Any] = []
    remaining = iter(failures)
    thread = make_thread(limit)
    for entry in entries:
        thread.enqueue(entry)
    thread.start(lambda: UnreliableWriter(flushed, remaining), "test")
    thread.close(10)
    return thread, [step for _, step, _ in flushed]


def test_entries_are_written_in_order() -> None:
    thread, steps = write_all([make_number(step) for step in range(5)], [])
    assert (steps, thread.dropped, thread.first_error) == ([0, 1, 2, 3, 4], {}, "")


def test_record_that_cannot_be_written_is_dropped_and_counted() -> None:
    thread, steps = write_all([make_number(step) for step in range(4)], [None, RuntimeError("invalid"), None, None])
    assert (steps, dict(thread.dropped), thread.first_error) == ([0, 2, 3], {"numbers": 1}, "RuntimeError: invalid")


def test_entries_since_the_last_flush_are_written_again_after_an_error() -> None:
    flushed: list[Any] = []
    remaining: Iterator[Exception | None] = iter([None, DISK_FULL, None, None, None])
    recovered, thread = threading.Event(), make_thread()
    for step in range(3):
        thread.enqueue(make_number(step))
    thread.enqueue(Entry("ends", lambda _: lambda _: recovered.set()))
    thread.start(lambda: UnreliableWriter(flushed, remaining), "test")
    assert recovered.wait(10)
    thread.close(10)
    assert [step for _, step, _ in flushed] == [0, 1, 2]
    assert (dict(thread.dropped), thread.first_error) == ({}, "OSError: [Errno 28] No space left on device")


class RejectsFlush(UnreliableWriter):
    """Writer that rejects a flush of more than one record."""

    def flush(self) -> None:
        if len(self.unflushed) > 1:
            raise ValueError("too many records")
        super().flush()


def test_entries_of_a_rejected_flush_are_dropped_and_counted() -> None:
    flushed: list[Any] = []
    rejected, thread = threading.Event(), make_thread()
    for step in range(3):
        thread.enqueue(make_number(step))
    attempts = iter(
        [lambda: RejectsFlush(flushed, iter(())), lambda: (rejected.set(), RejectsFlush(flushed, iter(())))[1]]
    )
    thread.start(lambda: next(attempts)(), "test")
    assert rejected.wait(10)
    thread.enqueue(make_number(3))
    thread.close(10)
    assert [step for _, step, _ in flushed] == [3]
    assert (dict(thread.dropped), thread.first_error) == ({"numbers": 3}, "ValueError: too many records")


def test_too_long_name_is_not_retried() -> None:
    thread, steps = write_all(
        [make_number(step) for step in range(3)], [None, OSError(errno.ENAMETOOLONG, "File name too long")]
    )
    assert (steps, dict(thread.dropped)) == ([0, 2], {"numbers": 1})


def test_entries_of_an_unavailable_backend_count_as_lost() -> None:
    thread, steps = write_all([make_number(step) for step in range(3)], [DISK_FULL] * 1000)
    assert (steps, dict(thread.dropped)) == ([], {"numbers": 3})


def test_creation_of_a_writer_is_retried() -> None:
    flushed: list[Any] = []
    attempts: list[Callable[[], Writer]] = [
        lambda: _raise(DISK_FULL),
        lambda: _raise(RuntimeError("no")),
        lambda: UnreliableWriter(flushed, iter(())),
    ]
    done, thread = threading.Event(), make_thread()
    thread.enqueue(make_number(1))
    thread.enqueue(Entry("ends", lambda _: lambda _: done.set()))
    thread.start(lambda: attempts.pop(0)(), "test")
    assert done.wait(10)
    thread.close(10)
    assert flushed == [("a", 1, 0.0)]


def test_system_exit_of_a_backend_is_an_error_of_the_thread() -> None:
    thread, steps = write_all([make_number(step) for step in range(3)], [SystemExit("no license")] * 1000)
    assert (steps, dict(thread.dropped), thread.first_error) == ([], {"numbers": 3}, "SystemExit: no license")


def _raise(error: Exception) -> Writer:
    raise error


def test_full_queue_drops_images_before_numbers_and_old_before_new() -> None:
    def entry(kind: str, name: int) -> Entry:
        return Entry(kind, lambda _: lambda writer: writer.write_scalar("a", 0.0, name))

    entries = [
        entry("numbers", 1),
        entry("images", 2),
        entry("numbers", 3),
        entry("images", 4),
        entry("numbers", 5),
    ]
    thread, steps = write_all(entries, [], limit=300)
    assert (steps, dict(thread.dropped)) == ([1, 3, 5], {"images": 2})
    thread, steps = write_all(entries, [], limit=200)
    assert (steps, dict(thread.dropped)) == ([3, 5], {"images": 2, "numbers": 1})
    assert thread.first_error == "the backend is slower than training"


def test_entries_of_a_thread_that_was_not_started_count_as_lost() -> None:
    thread = make_thread()
    thread.enqueue(make_number(1))
    thread.close(10)
    thread.close(10)
    assert dict(thread.dropped) == {"numbers": 1}


def test_blocked_backend_times_out() -> None:
    blocked, release, thread = threading.Event(), threading.Event(), make_thread()
    thread.enqueue(Entry("ends", lambda _: lambda _: (blocked.set(), release.wait(10))[0]))
    thread.enqueue(make_number(2))
    thread.start(lambda: UnreliableWriter([], iter(())), "test")
    assert blocked.wait(10)
    thread.close(0.01, "it is uploaded later")
    assert thread.dropped.total() == 2
    assert thread.first_error == "the backend timed out after 0.01 s; it is uploaded later"
    release.set()


@pytest.mark.parametrize("size", [1, 10**9])
def test_single_entry_can_exceed_the_queue_size(size: int) -> None:
    entry = make_number(1)
    entry.size = size
    assert write_all([entry], [])[1] == [1]
