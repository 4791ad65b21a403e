"""Run the tests of the packages of other trainers, with the lowest and the newest version of each trainer.

`make bridges` runs all tests of all packages and writes the table of docs/versions.md, `make bridges HOST=lightning`
those of one package; `make bridges-newest` runs the fast tests of all packages with the newest versions.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from versions.environments import Environment
from versions.matrix import format_table, write_table
from versions.results import PAGE, find_commit, load_result, save_result
from versions.suite import FAST, Result, run_tests
from versions.trainers import find_lowest, find_newest, make_trainer, select_bridges

__all__ = ["SHARED_TESTS", "main"]

ROOT = Path(__file__).parents[2]
SHARED_TESTS = "tests/bridge/test_trainers.py"
"""Tests that run with each trainer that is installed."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 1 if a test failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--newest", action="store_true", help="the fast tests with the newest versions")
    parser.add_argument("host", nargs="?", default="", help="all trainers without one")
    options = parser.parse_args(arguments)
    packages = select_bridges(ROOT, options.host)
    results = dict(_run_newest(packages) if options.newest else _run_all(packages))
    print(format_table(results))
    if not options.newest and not options.host:
        write_table(ROOT / PAGE, "trainers", format_table(results))
    return int(any(result.failed for result in results.values()))


def _run_newest(packages: Sequence[str]) -> Iterator[tuple[str, Result]]:
    for package in packages:
        environment = make_trainer(ROOT, package, find_newest(ROOT, package))
        yield environment.name, _run(environment, package, FAST)


def _run_all(packages: Sequence[str]) -> Iterator[tuple[str, Result]]:
    """Run the tests that have not run at this commit."""
    commit = find_commit(ROOT)
    for package in packages:
        for versions in (find_lowest(ROOT, package), find_newest(ROOT, package)):
            environment = make_trainer(ROOT, package, versions)
            result = load_result(ROOT, environment, commit) if commit else None
            if result is None:
                result = _run(environment, package, "not gpu")
                if commit:
                    save_result(ROOT, environment, result, commit)
            yield environment.name, result


def _run(environment: Environment, package: str, select: str) -> Result:
    # Another trainer may be installed as well: of the shared tests, those with the name of the package run.
    return run_tests(environment, ROOT, [f"plugins/{package}", SHARED_TESTS, "-k", package], select)


if __name__ == "__main__":
    sys.exit(main())
