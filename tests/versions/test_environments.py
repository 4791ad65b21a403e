"""Tests of the environments with other versions; those that install packages are made by `make matrix`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from versions.environments import make_python, make_torch


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".ci/constraints.txt").write_text("torch==2.13.0\n")
    return tmp_path


@pytest.mark.parametrize("version", ["", "newest", "2"])
def test_invalid_version_of_torch_is_refused(root: Path, version: str) -> None:
    with pytest.raises(SystemExit, match=f"TORCH: invalid version, got '{version}'. Set it, for example TORCH=2.6.0."):
        make_torch(root, version)


def test_command_of_an_interpreter_is_refused_as_a_version(root: Path) -> None:
    with pytest.raises(SystemExit, match=r"PYTHON: invalid version, got 'python3'. Set it, for example PYTHON=3\.13"):
        make_python(root, "python3")


def test_python_that_is_not_installed_is_refused(root: Path) -> None:
    with pytest.raises(SystemExit, match=r"PYTHON: no interpreter, got '3\.99'. Install python3\.99 or make it known"):
        make_python(root, "3.99")


def test_tested_torch_runs_in_the_environment_of_the_tests(root: Path) -> None:
    environment = make_torch(root, "2.13.0")

    assert (environment.python, environment.variables) == (Path(sys.executable), {})
    assert environment.expected == {"torch": "2.13.0"}


def test_other_torch_precedes_the_environment_of_the_tests(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = root / ".venv/torch-2.6.0"
    folder.mkdir(parents=True)
    monkeypatch.setenv("PYTHONPATH", "before")

    environment = make_torch(root, "2.6.0")
    assert environment.variables == {"PYTHONPATH": f"{folder}/site-packages:before"}
    assert environment.folder == folder


@pytest.mark.slow
def test_torch_that_cannot_be_installed_is_reported_and_leaves_nothing(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(
        SystemExit, match=r"^torch 0\.0\.1: pip failed, got ERROR: C.* torch==0\.0\.1 .*\. Choose versions"
    ):
        make_torch(root, "0.0.1")

    assert not (root / ".venv/torch-0.0.1").exists()
