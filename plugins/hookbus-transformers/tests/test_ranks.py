"""Trainings of two processes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed: run `make bridges HOST=transformers`")

PROGRAM = Path(__file__).with_name("ranks.py")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_stop_requested_on_one_rank_stops_both_at_the_same_step(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    group = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks = [
        subprocess.Popen(
            [sys.executable, PROGRAM, tmp_path],
            env={**os.environ, **group, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in (0, 1)
    ]
    assert [rank.wait() for rank in ranks] == [0, 0]

    results = [json.loads((tmp_path / f"rank_{rank}.json").read_text()) for rank in (0, 1)]
    reasons = ["stop_on_rank_one: enough on rank 1"]
    expected = {"outcome": "stopped", "iters": 3, "steps": 3, "reasons": reasons, "results": ["val/loss"]}
    assert results == [expected, expected]
    state = torch.load(tmp_path / "host/checkpoint-3/hookbus.pth", weights_only=True)
    assert (state["loop"]["clock"]["iters_done"], len(state["ranks"])) == (3, 2)
