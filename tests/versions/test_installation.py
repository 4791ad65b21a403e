"""Tests of the installation with each version of torch."""

from __future__ import annotations

from pathlib import Path

import pytest
from versions.installation import README_TEST, main, select_versions

ROOT = Path(__file__).parents[2]


def test_all_versions_of_the_table_are_tested_by_default() -> None:
    assert select_versions(ROOT, []) == ["2.6.0", "2.9.1", "2.14.1", "2.13.0"]
    assert select_versions(ROOT, ["2.6.0"]) == ["2.6.0"]


def test_test_of_the_readme_exists() -> None:
    file, _, name = README_TEST.partition("::")
    assert f"\ndef {name}(" in (ROOT / file).read_text()


def test_invalid_version_is_refused() -> None:
    with pytest.raises(SystemExit, match=r"TORCH: .*got 'newest'"):
        main(["newest"])
