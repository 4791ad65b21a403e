"""Training with Accelerate on two ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("accelerate", reason="accelerate is not installed: run `make bridges HOST=accelerate`")

from tests.rank_processes import read_results

SCRIPT = Path(__file__).with_name("two_ranks.py")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_stop_of_one_rank_ends_both_after_the_same_iteration(tmp_path: Path) -> None:
    results = read_results(SCRIPT, tmp_path)
    for result in results:
        assert (result["world_size"], result["iters"], result["outcome"]) == (2, 3, "stopped")
        assert result["stops"] == ["stop_on_rank1: rank 1 on rank 1"]
    assert results[0]["weights"] == results[1]["weights"]
