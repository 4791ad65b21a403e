"""Tests of the guide for contributors: its paths exist, and the files that answer the first questions are short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.pages import ROOT

GUIDE = (ROOT / "CONTRIBUTING.md").read_text()
README = (ROOT / "README.md").read_text()
MAX_LINES = 169


def read_table(text: str, heading: str) -> list[tuple[str, str]]:
    """Return the rows of the table below a heading, without its header."""
    section = text.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| (.+?) \| (.+?) \|$", section, re.MULTILINE)
    return [(first, second) for first, second in rows[1:] if not first.startswith("---")]


def find_paths(text: str) -> list[str]:
    """Return the paths in backticks, except those of build results."""
    return [path for path in re.findall(r"`([\w./-]+/[\w./-]*)`", text) if not path.startswith(("build/", "dist/"))]


def test_every_path_of_the_guide_exists() -> None:
    paths = find_paths(GUIDE)
    assert len(paths) > 40
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_tasks_have_a_file_each() -> None:
    tasks = read_table(GUIDE, "Where to change what")
    assert len(tasks) >= 20
    assert [task for task, file in tasks if not find_paths(file)] == []


def test_every_package_is_described() -> None:
    described = " ".join(first for first, _ in read_table(GUIDE, "Packages"))
    packages = [path.parent.name for path in (ROOT / "hookbus").glob("*/__init__.py")]
    assert [name for name in packages if f"`hookbus/{name}/`" not in described] == []


@pytest.mark.parametrize(("text", "heading"), [(README, "Source code"), (GUIDE, "Where to start reading")])
def test_five_files_answer_the_first_questions(text: str, heading: str) -> None:
    files = [Path(find_paths(file)[0]) for _, file in read_table(text, heading)]
    assert len(files) == 5
    assert [str(path) for path in files if len((ROOT / path).read_text().splitlines()) > MAX_LINES] == []
