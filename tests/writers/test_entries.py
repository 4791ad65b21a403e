"""Tests of the entries in the queue of a `WriterHook`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hookbus.writers.entries import Entry, EntryFactory, WrittenSteps
from hookbus.writers.writer import Writer


class MemoryWriter(Writer):
    """Writer that stores all records in memory."""

    def __init__(self) -> None:
        self.lines: list[Any] = []

    def write_scalar(self, name: str, value: Any, step: int) -> None:
        self.lines.append((name, step, value))

    def write_image(self, name: str, image: Any, step: int, caption: str | None = None) -> None:
        self.lines.append((name, step, image, caption))

    def write_config(self, config: Mapping[str, Any]) -> None:
        self.lines.append(config)

    def write_artifact(self, path: Path, name: str | None = None) -> None:
        self.lines.append((path, name))


def write_entries(*entries: Entry) -> tuple[list[Any], list[str]]:
    """Write entries, and return the records and the messages of the reported errors."""
    writer, problems = MemoryWriter(), list[str]()
    for entry in entries:
        entry.prepare(lambda error: problems.append(str(error)))(writer)
    return writer.lines, problems


def test_numbers_are_written_by_backend_name_and_other_values_reported() -> None:
    entry = EntryFactory(str.upper, WrittenSteps()).make_numbers(
        {"a": lambda: 1, "b": lambda: "x", "c": lambda: True}, 7
    )
    assert write_entries(entry) == ([("A", 7, 1.0), ("C", 7, 1.0)], ["'b': expected a real number, got str"])


def test_name_with_a_lone_surrogate_is_escaped() -> None:
    entry = EntryFactory(str, WrittenSteps()).make_numbers({"\udce9": lambda: 1, "b": lambda: 2}, 7)
    assert write_entries(entry) == ([("\\udce9", 7, 1.0), ("b", 7, 2.0)], [])


def test_each_name_and_step_is_written_once() -> None:
    entries = EntryFactory(str, WrittenSteps())
    twice = [entries.make_numbers({"a": lambda: 1, name: lambda: 2}, 1) for name in ("b", "c")]
    assert write_entries(*twice)[0] == [("a", 1, 1.0), ("b", 1, 2.0), ("c", 1, 2.0)]


def test_image_and_number_can_have_the_same_name() -> None:
    entries = EntryFactory(str, WrittenSteps())
    assert write_entries(
        entries.make_record("image", "a", 1, lambda: "pixels", 1, "a cat"),
        entries.make_numbers({"a": lambda: 1}, 1),
        entries.make_record("image", "a", 1, lambda: "pixels", 1, "again"),
    ) == ([("a", 1, "pixels", "a cat"), ("a", 1, 1.0)], [])


def test_decreasing_step_is_reported() -> None:
    entries = EntryFactory(str, WrittenSteps())
    lines, problems = write_entries(*(entries.make_numbers({"a": lambda: 1}, step) for step in (5, 3, 6)))
    assert lines == [("a", 5, 1.0), ("a", 6, 1.0)]
    assert problems == ["'a': steps must increase, got step 3 after step 5"]


def test_existing_records_are_not_written_again_after_a_resume() -> None:
    written = WrittenSteps()
    entries = EntryFactory(str, written)
    written.initialize({("scalar", "a", 2), ("scalar", "a", 4), ("scalar", "a", 6)}, step=4)
    lines, problems = write_entries(
        *(entries.make_numbers({"a": lambda: 1, "b": lambda: 2}, step) for step in range(3, 8))
    )
    assert [line[:2] for line in lines] == [("b", 3), ("b", 4), ("a", 5), ("b", 5), ("b", 6), ("a", 7), ("b", 7)]
    assert problems == []


def test_missing_file_is_not_retried(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    entry = EntryFactory(str, WrittenSteps()).make_file(path, "best")
    assert write_entries(entry)[0] == [(path, "best")]
    path.unlink()
    with pytest.raises(ValueError, match="file: file does not exist"):
        write_entries(entry)


def test_error_of_a_value_contains_its_name() -> None:
    def read() -> Any:
        raise ValueError("invalid image")

    entry = EntryFactory(str, WrittenSteps()).make_record("image", "val/x", 1, read, 1, None)
    with pytest.raises(ValueError, match=r"^'val/x': invalid image$"):
        write_entries(entry)
