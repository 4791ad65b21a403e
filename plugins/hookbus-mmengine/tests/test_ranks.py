"""Training with MMEngine on two ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("mmengine", reason="MMEngine is not installed: run `make bridges HOST=mmengine`")

from tests.rank_processes import read_results

from .migration_rows import runs_row

SCRIPT = Path(__file__).with_name("two_ranks.py")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def read_steps(path: Path) -> list[int]:
    """Return the steps of the training records in the file of JSON lines."""
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [row["step"] for row in rows if row["kind"] == "train"]


def test_stop_of_one_rank_ends_both_and_the_resumed_training_equals_the_uninterrupted_one(tmp_path: Path) -> None:
    results = read_results(SCRIPT, tmp_path, "resume")
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
    first, second = read_results(SCRIPT, tmp_path, "buffers")
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
