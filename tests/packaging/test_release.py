"""A release in a clone with the core and two plugins: its conditions, its files and its tags."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.history import FIGURES
from tests.pages import ROOT

KEPT = ["hookbus-ema", "hookbus-timer"]
VERSION = importlib.metadata.version("hookbus")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class Clone:
    """A clone of the repository, prepared for a release."""

    def __init__(self, path: Path) -> None:
        self.path = path
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(path)], check=True, capture_output=True)
        removed = [folder.name for folder in (path / "plugins").iterdir() if folder.name not in KEPT]
        self.git("rm", "-r", "--quiet", *(f"plugins/{name}" for name in removed))
        self.git("config", "user.name", "Test")
        self.git("config", "user.email", "test@example.org")
        for folder in (path, *(path / "plugins" / name for name in KEPT)):
            changelog = folder / "CHANGELOG.md"
            changelog.write_text(
                re.sub(r"^## .*$", f"## {VERSION} - 2026-12-01", changelog.read_text(), count=1, flags=re.M)
            )
        history = path / "benchmarks/history.md"
        history.write_text(f"{history.read_text()}| {VERSION} |{' 1 |' * (len(FIGURES) + 4)}\n")
        self.commit()

    def git(self, *arguments: str) -> str:
        command = ["git", *arguments]
        return subprocess.run(command, cwd=self.path, check=True, capture_output=True, text=True).stdout

    def commit(self) -> None:
        self.git("commit", "--all", "--quiet", "--message", "Prepare the release")

    def release(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "releasing.release", *arguments]
        environment = {**os.environ, "PYTHONPATH": ".ci"}
        return subprocess.run(command, cwd=self.path, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path / "clone")


def test_release_builds_and_tags_every_package(clone: Clone) -> None:
    done = clone.release(VERSION)

    assert done.returncode == 0, done.stdout + done.stderr
    files = {path.name for path in (clone.path / "dist").iterdir()}
    names = ["hookbus", *KEPT]
    stems = [f"{name.replace('-', '_')}-{VERSION}" for name in names]
    assert files == {name for stem in stems for name in (f"{stem}.tar.gz", f"{stem}-py3-none-any.whl")}
    tags = clone.git("for-each-ref", "--format=%(objecttype) %(refname:short) %(*objectname)", "refs/tags")
    head = clone.git("rev-parse", "HEAD").strip()
    assert tags.splitlines() == [f"tag {name}-{VERSION} {head}" for name in names]
    assert clone.git("status", "--porcelain") == ""

    again = clone.release(VERSION)
    assert again.returncode == 1
    assert again.stderr == f"tags: 3 packages are released, got hookbus-{VERSION}. Choose a new version.\n"


def test_check_neither_builds_nor_tags(clone: Clone) -> None:
    done = clone.release(VERSION, "--check")

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not (clone.path / "dist").exists()
    assert clone.git("tag") == ""


def test_all_unmet_conditions_are_listed_and_nothing_is_tagged(clone: Clone) -> None:
    (clone.path / "hookbus" / "left.py").touch()
    done = clone.release("7.0")

    assert done.returncode == 1
    module, ema = "hookbus/__init__.py", "plugins/hookbus-ema"
    lines = done.stderr.splitlines()
    assert lines[0] == "working tree: 1 files differ from the last commit, got hookbus/left.py. Commit them."
    assert (
        lines[1] == "benchmarks/history.md: no row of version 7.0. Run `make history VERSION=7.0` on an idle machine."
    )
    assert f"pyproject.toml: the version is not 7.0, got {VERSION}. Set it." in lines
    assert f"{module}: `__version__` is not 7.0, got {VERSION}. Set it." in lines
    assert f"{ema}/pyproject.toml: the version is not 7.0, got {VERSION}. Set it." in lines
    assert any(line.startswith(f"{ema}/pyproject.toml: the range excludes 7.0, got hookbus<") for line in lines)
    assert (
        f"{ema}/CHANGELOG.md: the first section is not `## 7.0 - <date>`, got '## {VERSION} - 2026-12-01'."
        " Set version and date."
    ) in lines
    assert clone.git("tag") == ""


@pytest.mark.parametrize(
    ("version", "fix"), [("v1.0", "Use 1.0."), ("1.0-rc1", "Use 1.0rc1."), ("next", "such as 1.2.0.")]
)
def test_version_must_be_in_its_normal_form(clone: Clone, version: str, fix: str) -> None:
    first = clone.release(version, "--check").stderr.splitlines()[0]
    assert first.startswith(f"VERSION: the version is not in its normal form, got '{version}'.")
    assert first.endswith(fix)


def test_package_that_an_index_would_reject_is_not_tagged(clone: Clone) -> None:
    (clone.path / "plugins/hookbus-ema/README.md").write_text("")
    clone.commit()
    done = clone.release(VERSION)

    assert done.returncode == 1
    assert "twine check --strict" in done.stderr
    assert "`long_description` missing" in done.stdout + done.stderr
    assert clone.git("tag") == ""
