"""Run the tests in every environment and write the table of the documentation."""

from __future__ import annotations

import datetime
import re
from pathlib import Path

from versions.environments import Environment, make_lowest, make_python, make_torch
from versions.suite import Result, run_tests

__all__ = ["format_table", "write_matrix"]

PAGE = Path("docs/versions.md")
TORCH_VERSIONS = ("2.6.0", "2.9.1", "2.14.1")
PYTHON_VERSIONS = ("3.11", "3.12", "3.13")
TABLE = re.compile(r"(?<=<!-- measured: matrix -->\n\n).*?(?=\n\n<!-- end -->)", re.DOTALL)


def write_matrix(root: Path) -> int:
    """Run the fast tests in every environment, write the table, and return 1 if a test failed."""
    results = {environment.name: run_tests(environment, root, []) for environment in _make_environments(root)}
    page = root / PAGE
    page.write_text(TABLE.sub(lambda _: format_table(results, datetime.date.today()), page.read_text()))
    return int(any(result.failed for result in results.values()))


def format_table(results: dict[str, Result], date: datetime.date) -> str:
    """Return the table, with a row per environment and the reasons of skipped tests below it.

    Args:
        results: Result of each environment by name.
        date: Date of the run.
    """
    rows = [f"| {name} | {_format_result(result)} |" for name, result in results.items()]
    header = ["| environment | Python | torch | passed | failed | skipped |", "|---|---|---|---:|---:|---:|"]
    return "\n".join([f"Run on {date}:", "", *header, *rows, "", "Skipped:", "", *_format_reasons(results)])


def _make_environments(root: Path) -> list[Environment]:
    return [
        make_lowest(root),
        *(make_torch(root, version) for version in TORCH_VERSIONS),
        *(make_python(root, version) for version in PYTHON_VERSIONS),
    ]


def _format_result(result: Result) -> str:
    versions = f"{result.versions['python']} | {result.versions['torch']}"
    return f"{versions} | {result.passed:,} | {result.failed:,} | {sum(result.skipped.values()):,}"


def _format_reasons(results: dict[str, Result]) -> list[str]:
    reasons = sorted({reason for result in results.values() for reason in result.skipped})
    return [f"* {reason}: {_format_counts(results, reason)}" for reason in reasons] or ["* nothing"]


def _format_counts(results: dict[str, Result], reason: str) -> str:
    counts = {name: result.skipped.get(reason, 0) for name, result in results.items()}
    return ", ".join(f"{count} with {name}" for name, count in counts.items() if count)
