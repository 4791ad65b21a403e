"""Two processes that form a process group on this machine."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any


def run_ranks(script: Path, *arguments: object) -> list[subprocess.CompletedProcess[str]]:
    """Run a script on two ranks, and return how each of them ended, with its output.

    The processes are killed if the test fails before they have ended, such as at its timeout.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    command = [sys.executable, str(script), *map(str, arguments)]
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with ExitStack() as stack:
        ranks = []
        for rank in "01":
            environment = {**os.environ, **shared, "RANK": rank, "LOCAL_RANK": rank}
            process = stack.enter_context(subprocess.Popen(command, env=environment, **options))
            stack.callback(process.kill)
            ranks.append(process)
        outputs = [process.communicate()[0] for process in ranks]
    return [
        subprocess.CompletedProcess(command, process.returncode, output)
        for process, output in zip(ranks, outputs, strict=True)
    ]


def read_results(script: Path, *arguments: object) -> list[dict[str, Any]]:
    """Run a script on two ranks, and return the result that each prints as JSON after the word RESULT."""
    outputs = [rank.stdout for rank in run_ranks(script, *arguments)]
    lines = [[line for line in output.splitlines() if line.startswith("RESULT ")] for output in outputs]
    assert all(lines), outputs
    return [json.loads(line[0].removeprefix("RESULT ")) for line in lines]
