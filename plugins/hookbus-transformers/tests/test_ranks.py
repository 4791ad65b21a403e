"""Trainings of two processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed: run `make bridges HOST=transformers`")

from tests.rank_processes import run_ranks

PROGRAM = Path(__file__).with_name("ranks.py")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_stop_requested_on_one_rank_stops_both_at_the_same_step(tmp_path: Path) -> None:
    ranks = run_ranks(PROGRAM, tmp_path)
    assert [rank.returncode for rank in ranks] == [0, 0], ranks

    results = [json.loads((tmp_path / f"rank_{rank}.json").read_text()) for rank in (0, 1)]
    reasons = ["stop_on_rank_one: enough on rank 1"]
    expected = {"outcome": "stopped", "iters": 3, "steps": 3, "reasons": reasons, "results": ["val/loss"]}
    assert results == [expected, expected]
    state = torch.load(tmp_path / "host/checkpoint-3/hookbus.pth", weights_only=True)
    assert (state["loop"]["clock"]["iters_done"], len(state["ranks"])) == (3, 2)
