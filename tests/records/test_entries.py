"""What a `WriterHook` puts into its queue."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hookbus.records.entries import Entries, Ledger
from hookbus.records.writer_thread import Entry
from hookbus.writers import Writer


class Notebook(Writer):
    """A back end in memory."""

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


def written(*entries: Entry) -> tuple[list[Any], list[str]]:
    """What entries write, and what they report."""
    notebook, problems = Notebook(), list[str]()
    for entry in entries:
        entry.prepare(lambda error: problems.append(str(error)))(notebook)
    return notebook.lines, problems


def test_numbers_are_written_under_the_names_of_the_back_end_and_what_is_none_is_reported() -> None:
    entry = Entries(str.upper, Ledger()).numbers({"a": lambda: 1, "b": lambda: "x", "c": lambda: True}, 7)
    assert written(entry) == ([("A", 7, 1.0), ("C", 7, 1.0)], ["'b': a str is not a real number"])


def test_a_name_that_no_encoding_can_hold_costs_nothing() -> None:
    entry = Entries(str, Ledger()).numbers({"\udce9": lambda: 1, "b": lambda: 2}, 7)
    assert written(entry) == ([("\\udce9", 7, 1.0), ("b", 7, 2.0)], [])


def test_a_place_is_written_once() -> None:
    entries = Entries(str, Ledger())
    twice = [entries.numbers({"a": lambda: 1, name: lambda: 2}, 1) for name in ("b", "c")]
    assert written(*twice)[0] == [("a", 1, 1.0), ("b", 1, 2.0), ("c", 1, 2.0)]


def test_a_picture_and_a_number_may_have_one_name() -> None:
    entries = Entries(str, Ledger())
    assert written(
        entries.record("image", "a", 1, lambda: "pixels", 1, "a cat"),
        entries.numbers({"a": lambda: 1}, 1),
        entries.record("image", "a", 1, lambda: "pixels", 1, "again"),
    ) == ([("a", 1, "pixels", "a cat"), ("a", 1, 1.0)], [])


def test_a_step_that_goes_back_is_reported() -> None:
    entries = Entries(str, Ledger())
    lines, problems = written(*(entries.numbers({"a": lambda: 1}, step) for step in (5, 3, 6)))
    assert lines == [("a", 5, 1.0), ("a", 6, 1.0)]
    assert problems == ["'a' comes for step 3 after step 5; steps only go forward"]


def test_what_the_back_end_holds_after_a_resume_is_not_written_again() -> None:
    ledger = Ledger()
    entries = Entries(str, ledger)
    ledger.begin({("scalar", "a", 2), ("scalar", "a", 4), ("scalar", "a", 6)}, step=4)
    lines, problems = written(*(entries.numbers({"a": lambda: 1, "b": lambda: 2}, step) for step in range(3, 8)))
    assert [line[:2] for line in lines] == [("b", 3), ("b", 4), ("a", 5), ("b", 5), ("b", 6), ("a", 7), ("b", 7)]
    assert problems == []


def test_a_file_that_is_gone_is_no_reason_to_try_again(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    entry = Entries(str, Ledger()).file(path, "best")
    assert written(entry)[0] == [(path, "best")]
    path.unlink()
    with pytest.raises(ValueError, match="file is gone"):
        written(entry)


def test_what_cannot_be_read_is_told_with_its_name() -> None:
    def read() -> Any:
        raise ValueError("a picture of shape (2, 4, 5) has no colours")

    entry = Entries(str, Ledger()).record("image", "val/x", 1, read, 1, None)
    with pytest.raises(ValueError, match=r"^'val/x': a picture of shape"):
        written(entry)
