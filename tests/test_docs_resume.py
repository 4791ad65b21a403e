"""Test of the resume example with a real SIGINT: the result equals that of an uninterrupted run."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hookbus.checkpoint.state import read_checkpoint
from hookbus.testing import fingerprint
from hookbus_logger import read_jsonl
from tests.pages import ROOT

COMMAND = [sys.executable, "-m", "hookbus", "train", str(ROOT / "docs" / "examples" / "interrupted.yaml")]


def train(directory: Path) -> int:
    return subprocess.run(
        [*COMMAND, f"work_dir={directory}", "training.epochs=2"], capture_output=True, timeout=240, check=False
    ).returncode


def train_until_ctrl_c(directory: Path) -> int:
    """Run the training and send SIGINT after the first record of the second epoch. Return the exit code."""
    rows = directory / "logs" / "metrics.jsonl"
    with subprocess.Popen(
        [*COMMAND, f"work_dir={directory}", "training.epochs=2"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        deadline = time.monotonic() + 120
        while not (rows.is_file() and '"epoch": 2' in rows.read_text()):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)
    return process.returncode


def load_result(directory: Path) -> dict[str, Any]:
    checkpoint = read_checkpoint(directory / "checkpoints" / "last.pth")
    parts = {name: fingerprint(checkpoint[name]) for name in ("state_dict", "ema_state_dict", "optimizer", "scheduler")}
    rows = read_jsonl(directory / "logs" / "metrics.jsonl")
    log = [
        {**row, "time": None} for row in rows if row["kind"] in ("train", "val")
    ]  # other rows contain times and paths
    return {**parts, "log": log}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_interrupted_run_equals_an_uninterrupted_run(tmp_path: Path) -> None:
    assert train(tmp_path / "whole") == 0

    assert train_until_ctrl_c(tmp_path / "parts") == 130
    status = json.loads((tmp_path / "parts" / "status.json").read_text())
    assert status["outcome"] == "interrupted"
    assert not (tmp_path / "parts" / "checkpoints" / "epoch_2.pth").exists()
    assert train(tmp_path / "parts") == 0

    assert load_result(tmp_path / "parts") == load_result(tmp_path / "whole")
