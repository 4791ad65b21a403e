"""Training with Accelerate on two ranks."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("accelerate", reason="accelerate is not installed: run `make bridges HOST=accelerate`")

SCRIPT = Path(__file__).with_name("two_ranks.py")

pytestmark = pytest.mark.slow


def run_ranks(directory: Path) -> list[dict[str, Any]]:
    """Run the script on two ranks, and return the result of each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    command = [sys.executable, str(SCRIPT), str(directory)]
    ranks = [
        subprocess.Popen(
            command,
            env={**os.environ, **shared, "RANK": rank, "LOCAL_RANK": rank},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in "01"
    ]
    outputs = [rank.communicate(timeout=100)[0] for rank in ranks]
    lines = [[line for line in output.splitlines() if line.startswith("RESULT ")] for output in outputs]
    assert all(lines), outputs
    return [json.loads(line[0].removeprefix("RESULT ")) for line in lines]


def test_stop_of_one_rank_ends_both_after_the_same_iteration(tmp_path: Path) -> None:
    results = run_ranks(tmp_path)
    for result in results:
        assert (result["world_size"], result["iters"], result["outcome"]) == (2, 3, "stopped")
        assert result["stops"] == ["stop_on_rank1: rank 1 on rank 1"]
    assert results[0]["weights"] == results[1]["weights"]
