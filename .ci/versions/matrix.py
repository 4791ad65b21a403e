"""Run the tests in every environment and write the table of the documentation."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from versions.bounds import CONSTRAINTS, read_pins
from versions.environments import Environment, make_lowest, make_python, make_torch
from versions.results import PAGE, find_commit, load_result, save_result
from versions.suite import Result, run_tests

__all__ = ["NEWEST_TORCH", "PYTHON_VERSIONS", "TORCH_VERSIONS", "format_table", "write_matrix", "write_table"]

NEWEST_TORCH = "2.14.1"
TORCH_VERSIONS = ("2.6.0", "2.9.1", NEWEST_TORCH)  # beside the one of the constraints
PYTHON_VERSIONS = ("3.12", "3.13")  # beside the one that runs


def write_matrix(root: Path) -> int:
    """Run the fast tests in every environment, write the table, and return 1 if a test failed.

    An environment in which all of them ran already at this commit is not repeated.

    Raises:
        SystemExit: If the files are not those of a commit.
    """
    commit = find_commit(root)
    if commit is None:
        raise SystemExit("matrix: the files are not those of a commit. Commit them: results are kept by commit.")
    results = {environment.name: _measure(root, environment, commit) for environment in _make_environments(root)}
    write_table(root / PAGE, "matrix", format_table(results))
    return int(any(result.failed for result in results.values()))


def _make_environments(root: Path) -> Iterator[Environment]:
    tested = read_pins(root / CONSTRAINTS)["torch"]
    yield make_lowest(root)
    for version in sorted({*TORCH_VERSIONS, tested}, key=lambda text: [int(part) for part in text.split(".")]):
        yield make_torch(root, version)
    for version in PYTHON_VERSIONS:
        yield make_python(root, version)


def _measure(root: Path, environment: Environment, commit: str) -> Result:
    kept = load_result(root, environment, commit)
    if kept is not None:
        return kept
    result = run_tests(environment, root)
    save_result(root, environment, result, commit)
    return result


def write_table(page: Path, name: str, table: str) -> None:
    """Replace a table of a page.

    Raises:
        SystemExit: If the page has no place for it.
    """
    start = f"<!-- measured: {name} -->"
    text, places = re.subn(
        rf"(?<={re.escape(start)}\n).*?(?=<!-- end -->)", lambda _: f"\n{table}\n\n", page.read_text(), flags=re.DOTALL
    )
    if not places:
        raise SystemExit(f"{page}: no place for the table. Add the lines {start} and <!-- end -->.")
    page.write_text(text)


def format_table(results: Mapping[str, Result]) -> str:
    """Return the table, with a row per environment and the reasons of skipped tests below it.

    Args:
        results: Result of each environment by name.
    """
    rows = [f"| {name} | {_format_result(result)} |" for name, result in results.items()]
    header = [
        "| environment | Python | torch | passed | failed | skipped |",
        "| --- | --- | --- | ---: | ---: | ---: |",
    ]
    date = min(result.date for result in results.values())
    return "\n".join([f"Run on {date}:", "", *header, *rows, "", "Skipped:", "", *_format_reasons(results)])


def _format_result(result: Result) -> str:
    versions = f"{result.versions['python']} | {result.versions['torch']}"
    return f"{versions} | {result.passed:,} | {result.failed:,} | {sum(result.skipped.values()):,}"


def _format_reasons(results: Mapping[str, Result]) -> list[str]:
    reasons = sorted({reason for result in results.values() for reason in result.skipped})
    return [f"* {_escape(reason)}: {_format_counts(results, reason)}" for reason in reasons] or ["* nothing"]


def _escape(reason: str) -> str:
    return re.sub(r"([\\*_`\[\]])", r"\\\1", html.escape(" ".join(reason.split()), quote=False))


def _format_counts(results: Mapping[str, Result], reason: str) -> str:
    """Return each count of skipped tests with the environments that have it."""
    names: dict[int, list[str]] = {}
    for name, result in results.items():
        names.setdefault(result.skipped.get(reason, 0), []).append(name)
    if len(names) == 1:
        return f"{next(iter(names))} in each environment"
    return "; ".join(f"{count} with {' and '.join(group)}" for count, group in names.items() if count)
