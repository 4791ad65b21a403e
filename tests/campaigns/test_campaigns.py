"""A fixed sample of the campaigns."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.campaigns.preload import NO_COMPILER, find_compiler
from tests.pages import ROOT

SAMPLES = {
    "kills": 1, "shards": 1, "errors": 4, "damage": 1, "fuzz": 6, "hostile": 3, "endurance": 4,
    "resume": 1, "ranks": 1,
}  # fmt: skip
"""Number of trials of each case."""
# What other slow tests cover: kills, also of shards, damaged and hostile checkpoints, resumes and ranks.
EXHAUSTIVE = ("kills", "shards", "damage", "hostile", "resume", "ranks")
COMPILED = ("kills", "shards", "errors", "damage")


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.exhaustive] * (name in EXHAUSTIVE)) for name in SAMPLES]
)
def test_campaign_has_no_bad_result(name: str) -> None:
    if name in COMPILED and find_compiler() is None:
        pytest.skip(NO_COMPILER)
    command = [sys.executable, "-m", "tests.campaigns", "--only", name, "--trials", str(SAMPLES[name]), "--seed", "3"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
