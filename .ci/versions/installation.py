"""Install the packages as users do, and run the examples of the README, with each torch of the table.

`make test-install` tests all versions of torch, and `make test-install TORCH=2.6.0` one.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from versions.bounds import CONSTRAINTS, read_pins
from versions.environments import make_torch
from versions.matrix import TORCH_VERSIONS
from versions.suite import SLOW, run_tests

__all__ = ["README_TEST", "main", "select_versions"]

ROOT = Path(__file__).parents[2]
README_TEST = "tests/packaging/test_installation.py::test_readme_examples_run_in_a_fresh_environment"


def main(requested: Sequence[str]) -> int:
    """Print the result of each version of torch, and return 1 if the examples do not run with one."""
    results = {}
    for version in select_versions(ROOT, requested):
        results[version] = run_tests(make_torch(ROOT, version), ROOT, [README_TEST], SLOW)
    for result in results.values():
        outcome = "installed, and the examples ran" if result.passed == 1 else "failed"
        print(f"torch {result.versions['torch']}, Python {result.versions['python']}: {outcome}")
    return int(any(result.passed != 1 for result in results.values()))


def select_versions(root: Path, requested: Sequence[str]) -> list[str]:
    """Return the requested versions of torch, or all versions of the table."""
    return list(requested) or [*TORCH_VERSIONS, read_pins(root / CONSTRAINTS)["torch"]]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
