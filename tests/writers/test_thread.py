"""Tests of the thread that writes to a backend, and of its bounded queue."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from hookbus.errors import RejectedRecordsError
from hookbus.writers.entries import OUTCOMES, Entry
from hookbus.writers.thread import WriterThread
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
    entries: list[Entry], failures: list[BaseException | None], limit: int = 10**6, timeout: float = 10
) -> tuple[WriterThread, list[int]]:
    """Write entries that are queued before the thread starts, and return the thread and the flushed steps."""
    flushed: list[Any] = []
    remaining = iter(failures)
    thread = make_thread(limit)
    for entry in entries:
        thread.enqueue(entry)
    thread.start(lambda: UnreliableWriter(flushed, remaining), "test")
    thread.close(timeout)
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
    thread, steps = write_all([make_number(step) for step in range(3)], [DISK_FULL] * 1000, timeout=0.1)
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
    thread.close(0.01, lambda: "it is uploaded later")
    assert thread.dropped.total() == 2
    assert thread.first_error == "the backend timed out after 0.01 s; it is uploaded later"
    release.set()


@pytest.mark.parametrize("size", [1, 10**9])
def test_single_entry_can_exceed_the_queue_size(size: int) -> None:
    entry = make_number(1)
    entry.size = size
    assert write_all([entry], [])[1] == [1]


# -- the end of a run ------------------------------------------------------------------------------


class EndWriter(UnreliableWriter):
    """Writer that also stores outcomes, and whose calls after the end of the run raise the given errors."""

    def __init__(self, flushed: list[Any], closing: Iterator[BaseException | None] | None = None) -> None:
        super().__init__(flushed, iter(()))
        self.closing = closing or iter(())

    def write_outcome(self, outcome: str) -> None:
        self.unflushed.append(outcome)

    def write_image(self, name: str, image: Any, step: int, caption: str | None = None) -> None:
        raise DISK_FULL

    def close(self) -> None:
        if (failure := next(self.closing, None)) is not None:
            raise failure


def make_outcome() -> Entry:
    return Entry(OUTCOMES, lambda _: lambda writer: writer.write_outcome("finished"))


def make_image() -> Entry:
    return Entry("images", lambda _: lambda writer: writer.write_image("a", None, 0))


def finish(
    entries: list[Entry], open_writer: Callable[[], Writer], timeout: float = 10, limit: int = 10**6
) -> WriterThread:
    """Close a thread that was started after all entries were queued, and whose first round is the last one."""
    thread = WriterThread(limit=limit, period=60, pause=0.01)
    for entry in [*entries, make_outcome()]:
        thread.enqueue(entry)
    thread.start(open_writer, "test")
    thread.close(timeout)
    return thread


def test_unavailable_backend_is_retried_at_the_end_until_it_is_available() -> None:
    flushed: list[Any] = []
    attempts = iter([DISK_FULL] * 4)

    def open_writer() -> Writer:
        return _raise(error) if (error := next(attempts, None)) else EndWriter(flushed)

    thread = finish([make_number(1), make_number(2)], open_writer)
    assert flushed == [("a", 1, 0.0), ("a", 2, 0.0), "finished"]
    assert (dict(thread.dropped), thread.first_error) == ({}, "OSError: [Errno 28] No space left on device")


def test_retries_at_the_end_stop_at_the_timeout_and_lost_records_are_counted() -> None:
    attempts = []

    def open_writer() -> Writer:
        attempts.append(1)
        return _raise(DISK_FULL)

    thread = finish([make_number(1), make_image()], open_writer, timeout=0.2)
    assert len(attempts) > 2
    assert thread.describe_missing() == (
        "3 records are missing: 1 images, 1 numbers, 1 outcomes. First: OSError: [Errno 28] No space left on device"
    )


def test_error_of_the_configuration_is_not_retried_at_the_end() -> None:
    attempts = []

    def open_writer() -> Writer:
        attempts.append(1)
        return _raise(RuntimeError("no such experiment"))

    assert finish([make_number(1)], open_writer).dropped == {"numbers": 1, "outcomes": 1}
    assert len(attempts) == 1


def test_outcome_is_written_after_a_rejected_flush() -> None:
    class RejectsNumbers(EndWriter):
        def flush(self) -> None:
            if any(isinstance(record, tuple) for record in self.unflushed):
                raise ValueError("invalid number")
            super().flush()

    flushed: list[Any] = []
    thread = finish([make_number(1)], lambda: RejectsNumbers(flushed))
    assert (flushed, dict(thread.dropped)) == (["finished"], {"numbers": 1})


def test_full_queue_keeps_the_outcome() -> None:
    flushed: list[Any] = []
    finish([make_number(step) for step in range(5)], lambda: EndWriter(flushed), limit=100)
    assert flushed == [("a", 4, 0.0), "finished"]


def test_outcome_is_written_again_if_the_writer_cannot_be_closed() -> None:
    flushed: list[Any] = []
    closing = iter([DISK_FULL, None, None])
    thread = finish([make_number(1)], lambda: EndWriter(flushed, closing))
    assert (flushed, dict(thread.dropped)) == ([("a", 1, 0.0), "finished", "finished"], {})


def test_outcome_of_a_writer_that_cannot_be_closed_counts_as_lost() -> None:
    thread = finish([], lambda: EndWriter([], iter([DISK_FULL] * 1000)), timeout=0.1)
    assert dict(thread.dropped) == {"outcomes": 1}


def test_image_that_cannot_be_uploaded_blocks_neither_numbers_nor_the_outcome() -> None:
    flushed: list[Any] = []
    thread = finish([make_image(), make_number(1), make_image(), make_number(2)], lambda: EndWriter(flushed), 0.1)
    assert flushed[:3] == [("a", 1, 0.0), ("a", 2, 0.0), "finished"]
    assert set(flushed[3:]) <= {"finished"}
    assert dict(thread.dropped) == {"images": 2}


# -- rejected records ------------------------------------------------------------------------------


class RejectsStep(UnreliableWriter):
    """Writer that rejects the records of step 1, and writes the others."""

    def flush(self) -> None:
        rejected = [record for record in self.unflushed if record[1] == 1]
        self.unflushed = [record for record in self.unflushed if record[1] != 1]
        super().flush()
        if rejected:
            raise RejectedRecordsError("step 1 is invalid", [record[0] for record in rejected])


def test_only_rejected_records_of_a_flush_are_dropped_and_named() -> None:
    flushed: list[Any] = []
    thread = make_thread()
    for step in (0, 1, 2, 1):
        thread.enqueue(make_number(step))
    thread.start(lambda: RejectsStep(flushed, iter(())), "test")
    thread.close(10)
    assert [step for _, step, _ in flushed] == [0, 2]
    assert thread.describe_missing() == (
        "2 records are missing: 2 numbers, of which the backend rejected 'a' (2). "
        "First: RejectedRecordsError: step 1 is invalid"
    )


def _reject(names: list[str]) -> None:
    raise RejectedRecordsError("no", names)


def test_number_of_names_in_a_message_is_limited() -> None:
    thread = make_thread()
    names = [f"n{k:02}" for k in range(12)]
    thread.enqueue(Entry("numbers", lambda _: lambda _: _reject(names)))
    thread.start(lambda: UnreliableWriter([], iter(())), "test")
    thread.close(10)
    assert "'n09' (1) and 2 more names. First" in thread.describe_missing()


def test_other_numbers_of_a_step_are_written_if_one_cannot_be_written() -> None:
    flushed: list[Any] = []
    thread = make_thread()
    values = {"a": 1.0, "b": 2.0, "c": 3.0}
    thread.enqueue(Entry("numbers", lambda _: lambda writer: writer.write_scalars(values, 0)))
    thread.start(lambda: UnreliableWriter(flushed, iter([None, ValueError("invalid"), None])), "test")
    thread.close(10)
    assert flushed == [("a", 0, 1.0), ("c", 0, 3.0)]
    assert (dict(thread.dropped), dict(thread.rejected)) == ({"numbers": 1}, {"b": 1})
    assert thread.first_error == "RejectedRecordsError: 'b': ValueError: invalid"
