from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.history import FIGURES, HISTORY, add_row, format_row, read_reports


def make_reports(value: float) -> dict[str, Any]:
    """Return reports in which every figure of the table has the same value."""
    reports: dict[str, Any] = {}
    for keys in FIGURES.values():
        inner = reports
        for key in keys[:-1]:
            inner = inner.setdefault(key, {})
        inner[keys[-1]] = value
    return reports


def test_reports_are_read_among_the_tables_of_the_benchmarks() -> None:
    lines = ["One event", "", json.dumps({"benchmark": "emit", "20 emit": 1.25}), '{"other": 1}']
    assert read_reports(lines) == {"emit": {"benchmark": "emit", "20 emit": 1.25}}


def test_row_contains_version_date_environment_load_and_ratios() -> None:
    cells = format_row("0.2.0", make_reports(1.0456), load=0.25).strip("| ").split(" | ")
    assert (cells[0], cells[4]) == ("0.2.0", "0.2")
    assert cells[5:] == ["1.05"] * len(FIGURES)


def test_missing_figure_is_an_error_that_names_it() -> None:
    reports = make_reports(1.0)
    del reports["loop"]["Trainer, no hooks"]
    with pytest.raises(SystemExit, match="the results contain no loop / Trainer, no hooks"):
        format_row("0.2.0", reports, load=0.0)


def test_row_is_added_at_the_end_or_replaces_the_row_of_its_version() -> None:
    page = "| version | x |\n|---|---|\n| 0.1.0 | 1 |\n"
    assert add_row(page, "| 0.2.0 | 2 |") == page + "| 0.2.0 | 2 |\n"
    assert add_row(page, "| 0.1.0 | 3 |") == "| version | x |\n|---|---|\n| 0.1.0 | 3 |\n"


def test_table_has_a_column_for_each_figure() -> None:
    rows = [line.strip("| ").split(" | ") for line in HISTORY.read_text().splitlines() if line.startswith("| ")]
    assert rows[0] == ["version", "date", "Python", "torch", "load", *FIGURES]
    assert {len(row) for row in rows} == {len(rows[0])}
