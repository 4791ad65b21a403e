"""Tests of the run in another environment, which is the environment of the tests here."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import pytest
import torch
from versions.environments import Environment
from versions.suite import check_versions, run_tests

PYTHON = ".".join(platform.python_version_tuple()[:2])
TORCH = torch.__version__.partition("+")[0]
TESTS = """
import pytest

def test_passes(): pass

@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.skip(reason="requires torch 9 or newer")
def test_is_skipped(number): pass

def test_fails(): assert False

@pytest.mark.slow
def test_is_slow(): assert False
"""


def make_environment(**expected: str) -> Environment:
    return Environment("this environment", Path(sys.executable), expected, Path("folder"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / ".venv").mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    slow: slow\n    gpu: GPU\n")
    return tmp_path


@pytest.mark.slow
def test_other_versions_are_refused_together() -> None:
    wrong = f"python {platform.python_version()} runs instead of 3.1; torch .* instead of 1.0"
    with pytest.raises(SystemExit, match=f"this environment: {wrong}. Remove folder and repeat"):
        check_versions(make_environment(python="3.1", torch="1.0"))


@pytest.mark.slow
def test_torch_that_cannot_be_imported_is_refused(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('no libcudart.so.12')")
    environment = Environment("torch 2.6.0", Path(sys.executable), {}, tmp_path, {"PYTHONPATH": str(tmp_path)})

    message = r"torch 2\.6\.0: the environment is damaged, got 'ImportError: no libcudart\.so\.12'\. Remove /"
    with pytest.raises(SystemExit, match=message):
        check_versions(environment)


@pytest.mark.slow
def test_result_counts_the_fast_tests_and_the_reasons_of_skipped_ones(root: Path) -> None:
    (root / "test_sample.py").write_text(TESTS)
    (root / "test_of_a_trainer.py").write_text(
        "import pytest; pytest.importorskip('x', reason='x is not installed: y')"
    )
    result = run_tests(make_environment(torch=TORCH), root, ["test_sample.py", "test_of_a_trainer.py"])

    assert (result.passed, result.failed) == (1, 1)
    assert result.skipped == {"requires torch 9 or newer": 2, "x is not installed: y": 1}
    assert result.versions == {"python": platform.python_version(), "torch": torch.__version__}


@pytest.mark.slow
def test_tests_that_cannot_be_collected_give_no_result(root: Path) -> None:
    (root / "test_sample.py").write_text("import nothing_of_this_name")
    with pytest.raises(SystemExit, match=r"this environment: not all tests were collected, got \['test_sample'\]\."):
        run_tests(make_environment(torch=TORCH), root, ["test_sample.py"])
