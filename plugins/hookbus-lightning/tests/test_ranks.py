"""Trainings of two processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("lightning", reason="Lightning is not installed: run `make bridges HOST=lightning`")

PROGRAM = Path(__file__).with_name("ranks.py")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("loop", ["trainer", "fabric"])
def test_stop_requested_on_one_rank_stops_both_at_the_same_step(tmp_path: Path, loop: str) -> None:
    subprocess.run([sys.executable, PROGRAM, tmp_path, loop], check=True, capture_output=True)
    results = [json.loads((tmp_path / f"rank_{rank}.json").read_text()) for rank in (0, 1)]
    assert results == 2 * [
        {"outcome": "stopped", "iters": 3, "steps": 3, "reasons": ["stop_on_rank_one: enough on rank 1"]}
    ]
    (path,) = tmp_path.rglob("*.ckpt")
    saved = torch.load(path, weights_only=True)
    state = saved["hookbus"] if loop == "fabric" else saved["callbacks"]["hookbus"]
    assert (state["loop"]["clock"]["iters_done"], len(state["ranks"])) == (3, 2)
