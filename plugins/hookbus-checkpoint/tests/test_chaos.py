"""Crash consistency, tested with ckpt-chaos, which kills a training at file operations and compares the resumed one.

Failures are a resume that raises (HARD_FAIL), one that results in other weights (SILENT_DIVERGENCE), and one that does
not use the latest complete checkpoint (LOST_WORK).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from itertools import chain
from pathlib import Path

import pytest
from ckpt_chaos.invariants import ResumeOutcome, classify

PROGRAM = Path(__file__).with_name("chaotic.py")


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("crashes", [5, pytest.param(18, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("mode", ["false", pytest.param("true", marks=pytest.mark.exhaustive)])
def test_training_resumes_after_each_crash(tmp_path: Path, mode: str, crashes: int) -> None:
    options = {
        "--work": str(tmp_path / "chaos"),
        "--jobs": "2",
        "--modes": "before,torn,unsynced",
        "--max-points": str(crashes),
        "--result-file": "{out}/final.bin",
        "--checkpoint-glob": "{out}/checkpoints/iter_*.pth",
        "--step-regex": r"resumed at iteration (\d+)",
        "--fail-on": "HARD_FAIL,SILENT_DIVERGENCE,LOST_WORK",
    }
    command = [sys.executable, "-m", "ckpt_chaos", "run", *chain.from_iterable(options.items())]
    process = subprocess.run(
        [
            *command,
            "--ckpt-ignore-size",
            "--",
            sys.executable,
            str(PROGRAM),
            "{out}",
            mode,
        ],  # checkpoints contain paths
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stdout[-5000:] + process.stderr[-2000:]

    results = [json.loads(path.read_text()) for path in (tmp_path / "chaos").glob("pt_*/result.json")]
    verdicts = Counter(classify(ResumeOutcome(**result["outcome"])) for result in results)
    assert verdicts == {"PASS": crashes + 1}  # and one without a crash
    crashed = [result for result in results if result["crashed"]]
    assert len(crashed) == crashes
    assert any(result["outcome"]["newest_complete_step"] > 0 for result in crashed)
