"""What torchrun starts in these tests: a script or a module, with a time limit that shows where it hangs.

    worker.py SECONDS script.py [arguments]
    worker.py SECONDS -m module [arguments]

A script finds `answer(value)`, which leaves a value for the test, and `RANK`.
"""

from __future__ import annotations

import faulthandler
import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any


def answer(value: Any) -> None:
    """Leave a value for the test, under the number of this rank."""
    Path(os.environ["ANSWERS"], f"{os.environ['RANK']}.json").write_text(json.dumps(value))


def main() -> None:
    seconds, *arguments = sys.argv[1:]
    faulthandler.enable()
    faulthandler.dump_traceback_later(float(seconds), exit=True)
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        runpy.run_path(arguments[0], {"answer": answer, "RANK": int(os.environ["RANK"])}, run_name="__main__")


if __name__ == "__main__":
    main()
