"""The best result of a metric."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hookbus._run.best import BestResult


@pytest.mark.parametrize("path", [None, Path("runs/x/checkpoints/best_loss.pth")])
def test_best_is_restored_from_its_json_state(path: Path | None) -> None:
    best = BestResult(0.25, epoch=2, step=6, weights="averaged", path=path)
    state = json.loads(json.dumps(best.state_dict()))
    assert state == {"value": 0.25, "epoch": 2, "step": 6, "weights": "averaged", "path": path and str(path)}
    assert BestResult.from_state(state) == best
