"""`status.json` of a work directory."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from hookbus._run.status import STATUS, StatusFile, read_status

VALID: dict[str, Any] = {"run": "a1", "outcome": "finished"}


def write(directory: Path, content: object) -> StatusFile:
    text = content if isinstance(content, str) else json.dumps(content)
    (directory / STATUS).write_text(text)
    return StatusFile.read(directory)


def test_status_of_a_run_is_read(tmp_path: Path) -> None:
    status = write(tmp_path, {**VALID, "checkpoint": None, "outputs": ["logs"], "overwritten": ["b2"], "new": [1]})

    assert (status.run, status.problem, status.fields["new"]) == ("a1", "", [1])
    assert read_status(tmp_path) == status.fields


def test_missing_status_has_no_problem(tmp_path: Path) -> None:
    assert StatusFile.read(tmp_path) == StatusFile()
    assert StatusFile.read(tmp_path / "a\0b") == StatusFile()


@pytest.mark.parametrize(
    "content",
    [
        "",
        "mine",
        "[]",
        "[" * 100_000,
        {},
        {"run": "a1"},
        {"outcome": "finished"},
        {**VALID, "run": ""},
        {**VALID, "run": "../a"},
        {**VALID, "run": 3},
        {**VALID, "checkpoint": 3},
        {**VALID, "outputs": "logs"},
        {**VALID, "outputs": [3]},
        {**VALID, "overwritten": ["../a"]},
        {**VALID, "overwritten": "a1"},
    ],
)
def test_file_with_another_content_is_not_a_status(tmp_path: Path, content: object) -> None:
    status = write(tmp_path, content)

    assert status.problem
    assert (status.fields, status.run, read_status(tmp_path)) == ({}, "", {})


def test_fifo_and_directory_are_not_a_status(tmp_path: Path) -> None:
    (tmp_path / "a" / STATUS).mkdir(parents=True)
    (tmp_path / "b").mkdir()
    os.mkfifo(tmp_path / "b" / STATUS)

    assert [StatusFile.read(tmp_path / name).problem for name in "ab"] == ["is a directory", "not a regular file"]


def test_removed_run_is_not_reported(tmp_path: Path) -> None:
    status = write(tmp_path, {**VALID, "outcome": "removed"})

    assert (status.is_removed, status.run, read_status(tmp_path)) == (True, "a1", {})


@pytest.mark.parametrize(
    ("content", "is_damaged"),
    [
        ("", True),
        ("\0" * 600, True),
        ("{", True),
        ('{\n  "run": "', True),
        ('{\n  "run": "a1",\n  "outc\x00', True),
        ("mine", False),
        ('{"accuracy": 0.9}', False),
    ],
)
def test_invalid_file_is_damaged_if_it_may_be_that_of_a_run(tmp_path: Path, content: str, is_damaged: bool) -> None:
    status = write(tmp_path, content)

    assert (status.is_damaged(["a1"]), status.is_damaged([])) == (is_damaged, False)
