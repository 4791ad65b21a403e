"""Tests of the list of tests that depend on torch most."""

from __future__ import annotations

from pathlib import Path

from versions.torch_tests import FAST_TORCH_TESTS, SLOW_TORCH_TESTS

ROOT = Path(__file__).parents[2]


def find_file(path: str) -> Path:
    return ROOT / path.partition("::")[0]


def test_every_listed_path_exists() -> None:
    assert [path for path in FAST_TORCH_TESTS + SLOW_TORCH_TESTS if not find_file(path).exists()] == []


def test_every_listed_slow_file_has_slow_tests() -> None:
    assert [path for path in SLOW_TORCH_TESTS if "pytest.mark.slow" not in find_file(path).read_text()] == []
