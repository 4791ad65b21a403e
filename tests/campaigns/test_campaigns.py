"""A fixed sample of the campaigns."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.campaigns.__main__ import CAMPAIGNS
from tests.pages import ROOT


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", CAMPAIGNS)
def test_interrupted_trainings_have_the_results_of_uninterrupted_ones(name: str) -> None:
    command = [sys.executable, "-m", "tests.campaigns", "--only", name, "--trials", "1", "--seed", "3"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
