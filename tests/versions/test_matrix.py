"""Tests of the table of tested versions."""

from __future__ import annotations

from pathlib import Path

import pytest
from versions.matrix import format_table, write_table
from versions.suite import Result

OLD = {"python": "3.11.7", "torch": "2.6.0"}
NEW = {"python": "3.13.0", "torch": "2.13.0"}


def make_result(versions: dict[str, str] = NEW, *, date: str = "2026-11-30", **skipped: int) -> Result:
    return Result(versions, 11_000, 0, {name.replace("_", " "): count for name, count in skipped.items()}, date)


def test_table_has_a_row_per_environment_and_the_reasons_of_skipped_tests() -> None:
    reason = "requires torch 2.9 or newer"
    results = {
        "torch 2.6.0": Result(OLD, 11_000, 0, {reason: 12}, "2026-11-30"),
        "Python 3.13": Result(NEW, 11_010, 2, {}, "2026-12-01"),
    }

    assert format_table(results).splitlines() == [
        "Run on 2026-11-30:",
        "",
        "| environment | Python | torch | passed | failed | skipped |",
        "| --- | --- | --- | ---: | ---: | ---: |",
        "| torch 2.6.0 | 3.11.7 | 2.6.0 | 11,000 | 0 | 12 |",
        "| Python 3.13 | 3.13.0 | 2.13.0 | 11,010 | 2 | 0 |",
        "",
        "Skipped:",
        "",
        f"* {reason}: 12 with torch 2.6.0",
    ]


def test_counts_of_a_reason_are_grouped_by_environments() -> None:
    results = {
        "a": make_result(no_GPU=3, old=1),
        "b": make_result(no_GPU=3, old=1),
        "c": make_result(no_GPU=3, old=4),
        "d": make_result(no_GPU=3),
    }
    assert format_table(results).splitlines()[-2:] == [
        "* no GPU: 3 in each environment",
        "* old: 1 with a and b; 4 with c",
    ]


def test_reason_is_one_line_of_text_in_the_page() -> None:
    result = Result(NEW, 1, 0, {"no *backend*\n  <gloo> of my_torch": 1}, "2026-11-30")
    assert format_table({"a": result}).endswith(r"* no \*backend\* &lt;gloo&gt; of my\_torch: 1 in each environment")


def test_table_without_skipped_tests_says_so() -> None:
    assert format_table({"x": make_result()}).endswith("Skipped:\n\n* nothing")


@pytest.mark.parametrize("old", ["", "\nold\n"])
def test_table_replaces_what_stood_between_the_lines(tmp_path: Path, old: str) -> None:
    page = tmp_path / "versions.md"
    page.write_text(f"above\n\n<!-- measured: matrix -->\n{old}\n<!-- end -->\n\nbelow\n")
    write_table(page, "matrix", "new")

    assert page.read_text() == "above\n\n<!-- measured: matrix -->\n\nnew\n\n<!-- end -->\n\nbelow\n"


def test_page_without_a_place_for_the_table_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "versions.md"
    page.write_text("text\n")
    with pytest.raises(SystemExit, match=r"versions\.md: no place for the table\. Add the lines"):
        write_table(page, "matrix", "new")
