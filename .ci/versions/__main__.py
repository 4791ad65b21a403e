"""Run the tests with other versions, or all combinations of the table.

`make test-torch TORCH=2.6.0`, `make test-python PYTHON=3.13` and `make test-lowest` run the fast tests once;
`make matrix` runs all environments and writes the table of docs/versions.md.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from versions.bounds import lock_lowest
from versions.environments import make_lowest, make_python, make_torch
from versions.matrix import write_matrix
from versions.suite import run_tests

ROOT = Path(__file__).parents[2]


def main() -> int:
    """Return 1 if a test failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    choice = parser.add_mutually_exclusive_group(required=True)
    choice.add_argument("--torch", metavar="VERSION")
    choice.add_argument("--python", metavar="VERSION")
    choice.add_argument("--lowest", action="store_true")
    choice.add_argument("--lock-lowest", action="store_true", help="write .ci/lowest.txt after a change of a bound")
    choice.add_argument("--matrix", action="store_true")
    parser.add_argument("paths", nargs="*", help="test files and folders; all without one")
    arguments = parser.parse_args()
    if arguments.lock_lowest:
        lock_lowest(ROOT)
        return 0
    if arguments.matrix:
        return write_matrix(ROOT)
    if arguments.torch:
        environment = make_torch(ROOT, arguments.torch)
    elif arguments.python:
        environment = make_python(ROOT, arguments.python)
    else:
        environment = make_lowest(ROOT)
    return int(run_tests(environment, ROOT, arguments.paths).failed > 0)


if __name__ == "__main__":
    sys.exit(main())
