"""What an outside judge says of the files: ckpt-chaos kills a training at file operations and compares what comes back.

It knows three kinds of damage: a resume that fails (HARD_FAIL), one that ends with other weights (SILENT_DIVERGENCE),
and one that does not use the newest file that was there (LOST_WORK).
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
@pytest.mark.parametrize("mode", ["false", "true"])
def test_every_crash_is_passed(tmp_path: Path, mode: str) -> None:
    options = {
        "--work": str(tmp_path / "judge"),
        "--jobs": "2",
        "--modes": "before,torn,unsynced",
        "--max-points": "18",
        "--result-file": "{out}/final.bin",
        "--checkpoint-glob": "{out}/checkpoints/iter_*.pth",
        "--step-regex": r"goes on at iteration (\d+)",
        "--fail-on": "HARD_FAIL,SILENT_DIVERGENCE,LOST_WORK",
    }
    judge = [sys.executable, "-m", "ckpt_chaos", "run", *chain.from_iterable(options.items())]
    judged = subprocess.run(
        [*judge, "--ckpt-ignore-size", "--", sys.executable, str(PROGRAM), "{out}", mode],  # paths are in the files
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert judged.returncode == 0, judged.stdout[-5000:] + judged.stderr[-2000:]

    results = [json.loads(path.read_text()) for path in (tmp_path / "judge").glob("pt_*/result.json")]
    verdicts = Counter(classify(ResumeOutcome(**each["outcome"])) for each in results)
    assert verdicts == {"PASS": 19}  # and one without a crash
    crashed = [each for each in results if each["crashed"]]
    assert len(crashed) == 18
    assert any(each["outcome"]["newest_complete_step"] > 0 for each in crashed)
