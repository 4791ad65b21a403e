"""Training with MMEngine on two ranks."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mmengine", reason="MMEngine is not installed: run `make bridges HOST=mmengine`")

from .migration_rows import runs_row

SCRIPT = Path(__file__).with_name("two_ranks.py")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def run_ranks(directory: Path, scenario: str) -> list[dict[str, Any]]:
    """Run the script on two ranks, and return the result of each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    command = [sys.executable, str(SCRIPT), str(directory), scenario]
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with ExitStack() as stack:
        ranks = []
        for rank in "01":
            environment = {**os.environ, **shared, "RANK": rank, "LOCAL_RANK": rank}
            process = stack.enter_context(subprocess.Popen(command, env=environment, **options))
            stack.callback(process.kill)  # after a timeout of the test
            ranks.append(process)
        outputs = [process.communicate()[0] for process in ranks]
    lines = [[line for line in output.splitlines() if line.startswith("RESULT ")] for output in outputs]
    assert all(lines), outputs
    return [json.loads(line[0].removeprefix("RESULT ")) for line in lines]


def read_steps(path: Path) -> list[int]:
    """Return the steps of the training records in the file of JSON lines."""
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [row["step"] for row in rows if row["kind"] == "train"]


def test_stop_of_one_rank_ends_both_and_the_resumed_training_equals_the_uninterrupted_one(tmp_path: Path) -> None:
    results = run_ranks(tmp_path, "resume")
    assert [result["world_size"] for result in results] == [2, 2]
    for result in results:
        stopped, whole, resumed = result["stopped"], result["whole"], result["resumed"]
        assert stopped["wrapped"]
        assert (stopped["iters"], stopped["outcome"]) == (5, "stopped")
        assert stopped["stops"] == ["stop_on_rank1: rank 1 on rank 1"]
        assert (whole["iters"], resumed["iters"], resumed["outcome"]) == (12, 12, "finished")
        for name in ("weights", "averages"):
            assert resumed[name] == whole[name] != stopped[name]
            assert result["whole"][name] == results[0]["whole"][name]
            assert result["stopped"][name] == results[0]["stopped"][name]
    files = sorted(path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob("metrics.jsonl"))
    assert files == ["parts", "whole"]
    for name in files:
        assert read_steps(tmp_path / name / "hookbus/logs/metrics.jsonl") == [*range(1, 13)]


@runs_row("`SyncBuffersHook`", "`sync_buffers`, whose running variances are those over all ranks, not their mean")
def test_buffers_are_synchronized(tmp_path: Path) -> None:
    first, second = run_ranks(tmp_path, "buffers")
    means, variances = [[result["plain"][name] for result in (first, second)] for name in ("mean", "variance")]
    expected = [(a + b) / 2 for a, b in zip(*means, strict=True)]
    spread = [((a - b) / 2) ** 2 for a, b in zip(*means, strict=True)]
    mean_variance = [(a + b) / 2 for a, b in zip(*variances, strict=True)]
    for result in (first, second):
        for hook in ("native", "ours"):
            assert result[hook]["mean"] == pytest.approx(expected, rel=1e-6)
            assert result[hook]["weights"] == result["plain"]["weights"]
        assert result["native"]["variance"] == pytest.approx(mean_variance, rel=1e-6)
        total = [variance + part for variance, part in zip(mean_variance, spread, strict=True)]
        assert result["ours"]["variance"] == pytest.approx(total, rel=1e-6)
    assert max(spread) > 1e-4
