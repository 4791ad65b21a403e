"""Run the tests with other versions, or all environments of the table.

`make test-torch TORCH=2.6.0`, `make test-python PYTHON=3.13` and `make test-lowest` run the fast tests once;
`make test-newest` runs those that depend on torch most, slow ones included, with the newest torch;
`make matrix` runs all environments and writes the table of docs/versions.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from versions.bounds import lock_lowest
from versions.environments import Environment, make_lowest, make_python, make_torch
from versions.matrix import NEWEST_TORCH, write_matrix
from versions.results import find_commit, save_result
from versions.suite import SLOW, run_tests
from versions.torch_tests import FAST_TORCH_TESTS, SLOW_TORCH_TESTS
from versions.trainers import find_newest, make_trainer, select_bridges

ROOT = Path(__file__).parents[2]


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 1 if a test failed."""
    options = _parse(arguments)
    if options.lock_lowest:
        lock_lowest(ROOT)
        return 0
    if options.matrix:
        return write_matrix(ROOT)
    if options.make:
        _make_environments()
        return 0
    if options.newest:
        return _run_torch_tests(make_torch(ROOT, NEWEST_TORCH))
    return _run_fast_tests(_make_environment(options), options.paths)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    choice = parser.add_mutually_exclusive_group(required=True)
    choice.add_argument("--torch", metavar="VERSION")
    choice.add_argument("--python", metavar="VERSION")
    choice.add_argument("--lowest", action="store_true")
    choice.add_argument("--newest", action="store_true", help="the tests of torch_tests.py with the newest torch")
    choice.add_argument("--lock-lowest", action="store_true", help="write .ci/lowest.txt after a change of a bound")
    choice.add_argument("--make", action="store_true", help="the environments of .ci/run, without running tests")
    choice.add_argument("--matrix", action="store_true")
    parser.add_argument("paths", nargs="*", help="test files and folders; all without one")
    options = parser.parse_args(arguments)
    if options.paths and (options.newest or options.lock_lowest or options.make or options.matrix):
        parser.error(f"paths: only with --torch, --python and --lowest, got {options.paths}")
    return options


def _make_environments() -> None:
    # pip uses a single core: one thread makes the largest environment, the other one the rest.
    with ThreadPoolExecutor() as pool:
        lowest = pool.submit(make_lowest, ROOT)
        make_torch(ROOT, NEWEST_TORCH)
        for package in select_bridges(ROOT):
            make_trainer(ROOT, package, find_newest(ROOT, package))
        lowest.result()


def _make_environment(options: argparse.Namespace) -> Environment:
    if options.torch is not None:
        return make_torch(ROOT, options.torch)
    if options.python is not None:
        return make_python(ROOT, options.python)
    return make_lowest(ROOT)


def _run_torch_tests(environment: Environment) -> int:
    fast = run_tests(environment, ROOT, FAST_TORCH_TESTS)
    slow = run_tests(environment, ROOT, SLOW_TORCH_TESTS, SLOW)
    return int(fast.failed + slow.failed > 0)


def _run_fast_tests(environment: Environment, paths: Sequence[str]) -> int:
    commit = find_commit(ROOT)
    result = run_tests(environment, ROOT, paths)
    if commit and not paths:  # all tests of a commit: a result of the table
        save_result(ROOT, environment, result, commit)
    return int(result.failed > 0)


if __name__ == "__main__":
    sys.exit(main())
