"""Tests of the list of tests that depend on torch most."""

from __future__ import annotations

from pathlib import Path

from versions.torch_tests import TORCH_TESTS

ROOT = Path(__file__).parents[2]


def test_every_listed_path_exists() -> None:
    assert [path for path in TORCH_TESTS if not (ROOT / path.partition("::")[0]).exists()] == []
