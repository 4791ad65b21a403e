"""Averages on two ranks: statistics over the data of both, and equal results."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rank_processes import read_results
from tests.torch_versions import requires_torch

SCRIPT = Path(__file__).with_name("two_ranks.py")


@requires_torch("distributed: fsdp2")
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_statistics_are_those_of_the_data_of_both_ranks(strategy: str) -> None:
    first, second = read_results(SCRIPT, strategy)
    assert first == second
    assert first["0.running_mean"] == pytest.approx([3.5])  # of the numbers from 0 to 7
    assert set(first["results"]) == {"val/loss", "val/swa/loss"}
