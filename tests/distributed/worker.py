"""Entry point of the ranks: runs a script or a module, and dumps its stack at a time limit.

    worker.py SECONDS script.py [arguments]
    worker.py SECONDS -m module [arguments]

A script receives the globals `RANK` and `report(value)`, which passes a JSON value to the test.
"""

from __future__ import annotations

import faulthandler
import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any


def report(value: Any) -> None:
    """Write a value for the test to the report file of this rank."""
    Path(os.environ["REPORT_DIR"], f"{os.environ['RANK']}.json").write_text(json.dumps(value))


def main() -> None:
    """Run the script or module of the command line."""
    seconds, *arguments = sys.argv[1:]
    faulthandler.enable()
    # A Python signal handler cannot run while a thread is blocked in a native collective call.
    faulthandler.dump_traceback_later(float(seconds), exit=True)
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        runpy.run_path(arguments[0], {"report": report, "RANK": int(os.environ["RANK"])}, run_name="__main__")


if __name__ == "__main__":
    main()
