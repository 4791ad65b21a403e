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

from hookbus.distributed import leave


def answer(value: Any) -> None:
    """Leave a value for the test, under the number of this rank."""
    Path(os.environ["ANSWERS"], f"{os.environ['RANK']}.json").write_text(json.dumps(value))


def main() -> None:
    """End as `hookbus` itself does, see `hookbus.distributed.leave`."""
    code: object = 0
    try:
        work()
    except SystemExit as end:
        code = end.code or 0
    leave(code if isinstance(code, int) else 1)


def work() -> None:
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
