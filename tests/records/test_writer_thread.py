"""The one thread that feeds a back end, and the bounded queue before it."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from hookbus.records.writer_thread import Entry, WriterThread
from hookbus.writers import Writer


class Disk(Writer):
    """A back end that fails when it is told to; what was flushed is kept by all writers of one list."""

    def __init__(self, kept: list[Any], failures: Iterator[BaseException | None]) -> None:
        self.kept, self.failures = kept, failures
        self.waiting: list[Any] = []
        self.closed = 0

    def write_scalar(self, name: str, value: Any, step: int) -> None:
        if (failure := next(self.failures, None)) is not None:
            raise failure
        self.waiting.append((name, step, value))

    def write_image(self, name: str, image: Any, step: int, caption: str | None = None) -> None: ...

    def write_config(self, config: Mapping[str, Any]) -> None: ...

    def flush(self) -> None:
        self.kept += self.waiting
        self.waiting = []

    def abandon(self) -> None:
        self.waiting = []

    def close(self) -> None:
        self.closed += 1


FULL = OSError(errno.ENOSPC, "No space left on device")


def number(step: int) -> Entry:
    return Entry("numbers", lambda _: lambda writer: writer.write_scalar("a", 0.0, step))


def feed(limit: int = 10**6) -> WriterThread:
    return WriterThread(limit=limit, period=0.001, pause=0.001)


def fed(
    entries: list[Entry], failures: list[BaseException | None], limit: int = 10**6
) -> tuple[WriterThread, list[int]]:
    """What is kept of entries that all wait when the thread begins."""
    kept: list[Any] = []
    left = iter(failures)
    made = feed(limit)
    for entry in entries:
        made.put(entry)
    made.start(lambda: Disk(kept, left), "test")
    made.close(10)
    return made, [step for _, step, _ in kept]


def test_what_was_put_is_written_in_order() -> None:
    made, steps = fed([number(step) for step in range(5)], [])
    assert (steps, made.lost, made.trouble) == ([0, 1, 2, 3, 4], {}, "")


def test_a_record_that_cannot_be_written_is_left_out_and_counted() -> None:
    made, steps = fed([number(step) for step in range(4)], [None, RuntimeError("what is that?"), None, None])
    assert (steps, dict(made.lost), made.trouble) == ([0, 2, 3], {"numbers": 1}, "RuntimeError: what is that?")


def test_after_trouble_with_the_back_end_everything_since_the_last_flush_comes_again() -> None:
    kept: list[Any] = []
    left: Iterator[Exception | None] = iter([None, FULL, None, None, None])
    recovered, made = threading.Event(), feed()
    for step in range(3):
        made.put(number(step))
    made.put(Entry("ends", lambda _: lambda _: recovered.set()))
    made.start(lambda: Disk(kept, left), "test")
    assert recovered.wait(10)
    made.close(10)
    assert [step for _, step, _ in kept] == [0, 1, 2]
    assert (dict(made.lost), made.trouble) == ({}, "OSError: [Errno 28] No space left on device")


class Refusing(Disk):
    """A back end that refuses some flushes, for a reason that does not pass."""

    def flush(self) -> None:
        if len(self.waiting) > 1:
            raise ValueError("these are too many")
        super().flush()


def test_what_is_refused_by_a_flush_is_left_out_and_counted_and_the_next_goes_on() -> None:
    kept: list[Any] = []
    refused, made = threading.Event(), feed()
    for step in range(3):
        made.put(number(step))
    attempts = iter([lambda: Refusing(kept, iter(())), lambda: (refused.set(), Refusing(kept, iter(())))[1]])
    made.start(lambda: next(attempts)(), "test")
    assert refused.wait(10)
    made.put(number(3))
    made.close(10)
    assert [step for _, step, _ in kept] == [3]
    assert (dict(made.lost), made.trouble) == ({"numbers": 3}, "ValueError: these are too many")


def test_a_name_that_is_too_long_for_the_disk_is_no_trouble_that_passes() -> None:
    made, steps = fed([number(step) for step in range(3)], [None, OSError(errno.ENAMETOOLONG, "File name too long")])
    assert (steps, dict(made.lost)) == ([0, 2], {"numbers": 1})


def test_a_back_end_that_stays_in_trouble_costs_what_waits() -> None:
    made, steps = fed([number(step) for step in range(3)], [FULL] * 1000)
    assert (steps, dict(made.lost)) == ([], {"numbers": 3})


def test_a_writer_that_cannot_be_made_is_tried_again() -> None:
    kept: list[Any] = []
    attempts: list[Callable[[], Writer]] = [
        lambda: _raise(FULL),
        lambda: _raise(RuntimeError("no")),
        lambda: Disk(kept, iter(())),
    ]
    done, made = threading.Event(), feed()
    made.put(number(1))
    made.put(Entry("ends", lambda _: lambda _: done.set()))
    made.start(lambda: attempts.pop(0)(), "test")
    assert done.wait(10)
    made.close(10)
    assert kept == [("a", 1, 0.0)]


def test_a_back_end_that_wants_to_leave_the_program_is_in_trouble_like_any_other() -> None:
    made, steps = fed([number(step) for step in range(3)], [SystemExit("no licence")])
    assert (steps, dict(made.lost), made.trouble) == ([], {"numbers": 3}, "SystemExit: no licence")


def _raise(error: Exception) -> Writer:
    raise error


def test_when_the_queue_is_full_pictures_go_before_numbers_and_old_before_new() -> None:
    def entry(kind: str, name: int) -> Entry:
        return Entry(kind, lambda _: lambda writer: writer.write_scalar("a", 0.0, name))

    entries = [
        entry("numbers", 1),
        entry("pictures", 2),
        entry("numbers", 3),
        entry("pictures", 4),
        entry("numbers", 5),
    ]
    made, steps = fed(entries, [], limit=300)
    assert (steps, dict(made.lost)) == ([1, 3, 5], {"pictures": 2})
    made, steps = fed(entries, [], limit=200)
    assert (steps, dict(made.lost)) == ([3, 5], {"pictures": 2, "numbers": 1})
    assert made.trouble == "the back end is slower than the training"


def test_what_never_began_counts_as_lost() -> None:
    made = feed()
    made.put(number(1))
    made.close(10)
    made.close(10)
    assert dict(made.lost) == {"numbers": 1}


def test_a_back_end_that_hangs_is_left_alone() -> None:
    hangs, go_on, made = threading.Event(), threading.Event(), feed()
    made.put(Entry("ends", lambda _: lambda _: (hangs.set(), go_on.wait(10))[0]))
    made.put(number(2))
    made.start(lambda: Disk([], iter(())), "test")
    assert hangs.wait(10)
    made.close(0.01, "it comes later")
    assert made.lost.total() == 2
    assert made.trouble == "the back end did not answer for 0.01 s; it comes later"
    go_on.set()


@pytest.mark.parametrize("size", [1, 10**9])
def test_a_single_entry_may_be_larger_than_the_queue(size: int) -> None:
    entry = number(1)
    entry.size = size
    assert fed([entry], [])[1] == [1]
