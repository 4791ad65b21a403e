"""A training that is killed at any instant goes on from its newest file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("killing.py")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("mode", "kills"), [("false", 500), ("true", 400), ("overlap", 200)])
def test_no_kill_leaves_a_run_that_does_not_resume_or_goes_backwards(tmp_path: Path, mode: str, kills: int) -> None:
    command = [sys.executable, str(PROGRAM), str(tmp_path), mode, str(kills)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads(done.stdout)
    assert seen["generation"] >= seen["least"] > kills / 2
    assert seen["amid"] > 0
    assert seen["periodic"] == 2
    assert seen["left"] == ["best_accuracy.pth", "best_accuracy.pth.json", "last.pth", "last.pth.json"]
