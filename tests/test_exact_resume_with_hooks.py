"""With the hooks that every training uses, a resumed run leaves what the run that was never interrupted leaves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import astuple
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest

from hookbus.state import read_checkpoint
from tests.interrupting import CHOICES, PLACES, Case, Stops, covering, interrupt, left_behind, train
from tests.toys import OPTIMIZERS, SCHEDULES

PAIRS = [Case(*each) for each in covering(CHOICES)]
EVERY = [
    Case(averages, stopping, False, place, "a stop", *training)
    for averages, stopping, place, *training in product(
        ("no EMA", "EMA with warm-up and buffers"),
        ("no early stopping", "one validation before its stop"),
        PLACES,
        OPTIMIZERS,
        SCHEDULES,
        (0, 2),
    )
]


@pytest.fixture(autouse=True)
def _the_disk_is_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here depends on what a loss of power would leave."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def compare(case: Case, tmp_path: Path) -> None:
    whole = left_behind(tmp_path / "whole", train(case, tmp_path / "whole"))
    interrupt(case, tmp_path / "stopped")
    run = train(case, tmp_path / "stopped")

    assert left_behind(tmp_path / "stopped", run) == whole


@pytest.mark.parametrize("case", PAIRS, ids=str)
def test_everything_that_is_left_is_the_same(case: Case, tmp_path: Path) -> None:
    compare(case, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("case", EVERY, ids=str)
def test_in_every_combination(case: Case, tmp_path: Path) -> None:
    compare(case, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("case", PAIRS[::7], ids=str)
def test_in_processes_that_know_nothing_of_each_other(case: Case, tmp_path: Path) -> None:
    def fresh(directory: str, *more: str) -> Any:
        command = [sys.executable, "-m", "tests.interrupting", json.dumps(astuple(case)), str(tmp_path / directory)]
        said = subprocess.run([*command, *more], capture_output=True, text=True, timeout=120, check=True).stdout
        return None if more else json.loads(said)

    whole = fresh("whole")
    fresh("stopped", "stop")
    assert fresh("stopped") == whole


def test_the_pairs_are_complete() -> None:
    assert len(PAIRS) <= 40
    for a, b in combinations(range(len(CHOICES)), 2):
        assert {(astuple(each)[a], astuple(each)[b]) for each in PAIRS} == set(product(CHOICES[a], CHOICES[b]))


def test_early_stopping_is_where_the_cases_say(tmp_path: Path) -> None:
    case = Case(stopping="one validation before its stop")
    train(case, tmp_path, Stops("after_train_iter", 8))
    state = read_checkpoint(tmp_path / "checkpoints" / "last.pth")["hooks"]["early_stopping"]["state"]
    assert state["wait_count"] == 2

    run = train(case, tmp_path)
    assert (run.outcome, run.iters_done) == ("stopped", 9)
