"""A resumed run with the standard hooks leaves the same files and states as the uninterrupted run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import astuple
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest

from hookbus.checkpoint.state import read_checkpoint
from tests.coverings import covering_combinations, covering_parameters
from tests.interruptions import CHOICES, POSITIONS, Case, StopAt, get_results, interrupt, train
from tests.toys import OPTIMIZERS, SCHEDULES

PAIRS = [Case(*choices) for choices in covering_combinations(CHOICES)]
STOPS: tuple[Sequence[Any], ...] = (
    ("no EMA", "EMA with warm-up and buffers"),
    ("no early stopping", "one validation before its stop"),
    tuple(POSITIONS),
    tuple(OPTIMIZERS),
    tuple(SCHEDULES),
    (0, 2),
)


@pytest.fixture(autouse=True)
def _disable_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip fsync, since no test here simulates a power failure."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def mark_every_second(cases: list[Case]) -> list[Any]:
    """Return the cases, of which every second one is slow."""
    return [pytest.param(case, marks=[pytest.mark.slow] * (i % 2)) for i, case in enumerate(cases)]


def compare(case: Case, tmp_path: Path) -> None:
    expected = get_results(tmp_path / "uninterrupted", train(case, tmp_path / "uninterrupted"))
    interrupt(case, tmp_path / "stopped")
    run = train(case, tmp_path / "stopped")

    assert get_results(tmp_path / "stopped", run) == expected


@pytest.mark.slow
@pytest.mark.parametrize("case", mark_every_second(PAIRS), ids=str)
def test_files_and_states_equal_those_of_the_uninterrupted_run(case: Case, tmp_path: Path) -> None:
    compare(case, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("averages", "stopping", "position", "optimizer", "schedule", "workers"), covering_parameters(STOPS, 2)
)
def test_files_and_states_are_equal_with_every_two_values(
    averages: str, stopping: str, position: str, optimizer: str, schedule: str, workers: int, tmp_path: Path
) -> None:
    compare(Case(averages, stopping, False, position, "a stop", optimizer, schedule, workers), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("case", PAIRS[::7], ids=str)
def test_files_and_states_are_equal_if_another_process_resumes(case: Case, tmp_path: Path) -> None:
    expected = get_results(tmp_path / "uninterrupted", train(case, tmp_path / "uninterrupted"))
    interrupt(case, tmp_path / "stopped")
    command = [sys.executable, "-m", "tests.interruptions", json.dumps(astuple(case)), str(tmp_path / "stopped")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)

    assert json.loads(done.stdout) == json.loads(json.dumps(expected))


def test_selected_cases_contain_all_pairs() -> None:
    assert len(PAIRS) <= 40
    for a, b in combinations(range(len(CHOICES)), 2):
        assert {(astuple(case)[a], astuple(case)[b]) for case in PAIRS} == set(product(CHOICES[a], CHOICES[b]))


def test_early_stopping_is_at_the_position_of_the_case(tmp_path: Path) -> None:
    case = Case(stopping="one validation before its stop")
    train(case, tmp_path, StopAt("after_train_iter", 8))
    state = read_checkpoint(tmp_path / "checkpoints" / "last.pth")["hooks"]["early_stopping"]["state"]
    assert state["wait_count"] == 2

    run = train(case, tmp_path)
    assert (run.outcome, run.iters_done) == ("stopped", 9)
