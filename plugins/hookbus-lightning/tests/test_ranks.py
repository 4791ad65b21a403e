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


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of the trainings of `ranks.py`."""
    directory = tmp_path_factory.mktemp("ranks")
    subprocess.run([sys.executable, PROGRAM, directory], check=True)
    return directory


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("loop", ["trainer", "fabric"])
def test_stop_requested_on_one_rank_stops_both_at_the_same_step(trained: Path, loop: str) -> None:
    results = [json.loads((trained / f"rank_{rank}.json").read_text()) for rank in (0, 1)]
    assert [result[loop] for result in results] == 2 * [
        {"outcome": "stopped", "iters": 3, "steps": 3, "reasons": ["stop_on_rank_one: enough on rank 1"]}
    ]
    (path,) = (trained / loop).rglob("*.ckpt")
    saved = torch.load(path, weights_only=True)
    state = saved["hookbus"] if loop == "fabric" else saved["callbacks"]["hookbus"]
    assert (state["loop"]["clock"]["iters_done"], len(state["ranks"])) == (3, 2)
