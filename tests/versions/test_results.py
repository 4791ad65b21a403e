"""Tests of the kept results, in a repository of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from versions.environments import Environment
from versions.results import PAGE, find_commit, load_result, save_result
from versions.suite import Result

RESULT = Result({"python": "3.11.7", "torch": "2.6.0"}, 11_000, 0, {"requires torch 2.9 or newer": 12}, "2026-11-30")
NAME = ("-c", "user.name=A", "-c", "user.email=a@example.org")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    run_git(tmp_path, "init")
    (tmp_path / PAGE).parent.mkdir()
    (tmp_path / PAGE).write_text("old")
    (tmp_path / ".gitignore").write_text(".venv/\n")
    run_git(tmp_path, "add", ".")
    run_git(tmp_path, *NAME, "commit", "--message", "first")
    return tmp_path


def run_git(root: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True)


def make_environment(root: Path, name: str = "torch 2.6.0") -> Environment:
    return Environment(name, Path(sys.executable), {}, root)


def test_result_is_kept_for_its_environment_and_commit(root: Path) -> None:
    commit = find_commit(root)
    assert commit is not None
    save_result(root, make_environment(root), RESULT, commit)

    assert load_result(root, make_environment(root), commit) == RESULT
    assert load_result(root, make_environment(root, "torch 2.9.1"), commit) is None
    assert load_result(root, make_environment(root), "0" * 40) is None


def test_changed_and_new_files_have_no_commit_except_the_page(root: Path) -> None:
    (root / PAGE).write_text("new")
    assert find_commit(root)

    (root / "test_new.py").touch()
    assert find_commit(root) is None


def test_files_outside_of_a_repository_have_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert find_commit(tmp_path) is None


def test_result_of_files_that_changed_during_the_tests_is_refused(root: Path) -> None:
    commit = find_commit(root)
    assert commit is not None
    (root / ".gitignore").write_text("")

    with pytest.raises(SystemExit, match=r"torch 2\.6\.0: the files changed during the tests\. Repeat the command\."):
        save_result(root, make_environment(root), RESULT, commit)
