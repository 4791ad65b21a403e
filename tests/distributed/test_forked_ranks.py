"""Ranks that are forked instead of started by torchrun."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.distributed.conftest import Launch

pytestmark = pytest.mark.slow


def test_ranks_differ_in_hashes_and_random_numbers(launch: Launch) -> None:
    script = """
        import os, random

        import numpy as np
        import torch

        report([hash("key"), random.random(), np.random.rand(), torch.rand(1).item(), os.environ["LOCAL_RANK"]])
    """
    first, second = launch(script).reports, launch(script).reports

    for index in range(4):
        assert first[0][index] != first[1][index]
    for index in range(1, 4):
        assert first[0][index] != second[0][index]
    assert [first[rank][4] for rank in (0, 1)] == ["0", "1"]


def test_failed_rank_ends_the_other_rank(launch: Launch) -> None:
    script = """
        import time

        report("started")
        if RANK == 1:
            raise ValueError("no such color")
        time.sleep(50)
    """
    completed = launch(script, succeeds=False)

    assert completed.returncode == 1
    assert completed.output(1).count("Traceback") == 1
    assert completed.output(1).endswith("ValueError: no such color\n")
    assert completed.output(0) == ""


def test_stack_of_a_rank_at_the_time_limit_is_in_its_output(launch: Launch) -> None:
    script = """
        import time

        def sleep_for_long():
            time.sleep(50)

        if RANK == 0:
            sleep_for_long()
    """
    completed = launch(script, succeeds=False, time_limit=7)

    assert completed.returncode == 1
    assert "Timeout (" in completed.output(0)
    assert "in sleep_for_long" in completed.output(0)
    assert completed.output(1) == ""


def test_next_launch_is_independent_of_the_last_one(launch: Launch) -> None:
    script = """
        import os

        import toys

        report([hasattr(toys, "changed"), os.environ.get("CHANGED")])
        toys.changed = os.environ["CHANGED"] = "yes"
        print("output")
    """
    for _ in range(2):
        completed = launch(script)

        assert completed.reports == {0: [False, None], 1: [False, None]}
        assert completed.output(0) == "output\n"
