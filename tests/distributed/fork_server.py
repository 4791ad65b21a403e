"""Process that has imported torch and hookbus, and forks a process of `worker.py` for each line of its input.

Each line is a `Job` as JSON. The answer consists of two lines: the process ID, and the exit code once the process has
ended.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch._dynamo
import torch.distributed.checkpoint
import torch.distributed.fsdp
import toys  # noqa: F401  # imports hookbus
import worker


def main() -> None:
    """Fork a process for each job, one after the other."""
    threads = os.listdir("/proc/self/task") if sys.platform == "linux" else ["main"]
    assert len(threads) == 1, "a fork of a process with several threads may block"
    gc.freeze()  # a process would copy the memory of all modules to collect them when it ends
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            # The process ends as the interpreter does: with exit handlers, and with a traceback after an error.
            prepare(json.loads(line))
            worker.main()
            return
        answer(pid)
        answer(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    os._exit(0)


def answer(number: int) -> None:
    """Write a line to the output."""
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


def prepare(job: dict[str, Any]) -> None:
    """Change this process to what it would be if it had been started for a job."""
    os.setsid()
    os.chdir(job["directory"])
    os.environ.clear()
    os.environ.update(job["variables"])
    sys.argv[1:] = job["arguments"]
    np.random.seed()  # as Python does for `random` after a fork
    torch.default_generator.seed()
    outputs = Path(job["outputs"])
    outputs.mkdir(parents=True)
    redirect(0, Path(os.devnull), os.O_RDONLY)
    for descriptor, name in enumerate(("stdout.log", "stderr.log"), 1):
        redirect(descriptor, outputs / name, os.O_WRONLY | os.O_CREAT)


def redirect(descriptor: int, path: Path, flags: int) -> None:
    """Replace the file of a descriptor."""
    opened = os.open(path, flags)
    os.dup2(opened, descriptor)
    os.close(opened)


if __name__ == "__main__":
    main()
