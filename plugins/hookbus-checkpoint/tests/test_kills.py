"""Resume of a training that was killed at random times."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("killing.py")
MODES = ("false", "true", "overlap")
MANY_KILLS = [pytest.param(mode, 500, marks=pytest.mark.exhaustive) for mode in MODES]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("mode", "kills"), [*zip(MODES, (80, 60, 40), strict=True), *MANY_KILLS])
def test_killed_training_resumes_from_its_latest_checkpoint(tmp_path: Path, mode: str, kills: int) -> None:
    command = [sys.executable, str(PROGRAM), str(tmp_path), mode, str(kills)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    assert process.returncode == 0, process.stderr[-3000:]
    result = json.loads(process.stdout)
    # Some trainings are killed before their first save: of 60 with asynchronous saves, 26 have completed one.
    assert result["generation"] >= result["least"] > kills / 3
    assert result["amid"] > 0
    assert result["periodic"] == 2
    assert result["left"] == ["best_accuracy.pth", "best_accuracy.pth.json", "last.pth", "last.pth.json"]
