"""Tests of the table of tested versions."""

from __future__ import annotations

import datetime

from versions.matrix import format_table
from versions.suite import Result

OLD = {"python": "3.11.7", "torch": "2.6.0"}
NEW = {"python": "3.13.0", "torch": "2.13.0"}


def test_table_has_a_row_per_environment_and_the_reasons_of_skipped_tests() -> None:
    reason = "requires torch 2.9 or newer"
    results = {"torch 2.6.0": Result(OLD, 11_000, 0, {reason: 12}), "Python 3.13": Result(NEW, 11_010, 2, {})}

    assert format_table(results, datetime.date(2026, 11, 30)).splitlines() == [
        "Run on 2026-11-30:",
        "",
        "| environment | Python | torch | passed | failed | skipped |",
        "|---|---|---|---:|---:|---:|",
        "| torch 2.6.0 | 3.11.7 | 2.6.0 | 11,000 | 0 | 12 |",
        "| Python 3.13 | 3.13.0 | 2.13.0 | 11,010 | 2 | 0 |",
        "",
        "Skipped:",
        "",
        f"* {reason}: 12 with torch 2.6.0",
    ]


def test_table_without_skipped_tests_says_so() -> None:
    assert format_table({"x": Result(NEW, 1, 0, {})}, datetime.date(2026, 11, 30)).endswith("Skipped:\n\n* nothing")
