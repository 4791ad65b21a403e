"""Tests of rank-specific state in a single process; tests/distributed/test_resume.py covers multiple processes."""

from __future__ import annotations

from typing import Any

import torch

from hookbus._run.run import Run
from hookbus.checkpoint.rank_state import add_rank_states, select_rank_state
from hookbus.data.rng import get_rng_state
from hookbus.testing import fake_training

CHECKPOINT: dict[str, Any] = {
    "rng": "rng 0",
    "grads": "gradients 0",
    "loop": {"seed": 1, "clock": {"iters_done": 6}, "metrics": "means 0", "data": "position 0"},
}
RANK_STATE = {"rng": "rng {}", "grads": "gradients {}", "metrics": "means {}", "data": "position {}"}
WORLD_SIZE_2 = {
    **CHECKPOINT,
    "ranks": [{key: text.format(rank) for key, text in RANK_STATE.items()} for rank in (0, 1)],
}


def make_run(rank: int, world_size: int) -> Run:
    run = fake_training(epochs=1, batches=1).run
    run.ranks.rank, run.ranks.world_size = rank, world_size
    return run


def test_single_process_adds_no_rank_states() -> None:
    checkpoint = dict(CHECKPOINT)
    add_rank_states(checkpoint, make_run(0, 1))

    assert checkpoint == CHECKPOINT


def test_checkpoint_of_a_single_process_is_the_state_of_rank_0() -> None:
    assert select_rank_state(CHECKPOINT, make_run(0, 1)) == CHECKPOINT
    assert select_rank_state(CHECKPOINT, make_run(0, 2)) == CHECKPOINT


def test_each_rank_selects_its_own_state() -> None:
    own = select_rank_state(WORLD_SIZE_2, make_run(1, 2))

    assert (own["rng"], own["grads"]) == ("rng 1", "gradients 1")
    assert own["loop"] == {"seed": 1, "clock": {"iters_done": 6}, "metrics": "means 1", "data": "position 1"}


def test_single_process_resumes_with_the_state_of_rank_0() -> None:
    assert select_rank_state(WORLD_SIZE_2, make_run(0, 1))["loop"] == CHECKPOINT["loop"]


def test_new_rank_is_reseeded_from_seed_rank_and_iteration() -> None:
    runs = [make_run(rank, 4) for rank in (2, 3, 2)]
    before = get_rng_state()["torch"]
    rng_states = [select_rank_state(WORLD_SIZE_2, run)["rng"]["torch"] for run in runs]

    assert torch.equal(rng_states[0], rng_states[2])
    assert not torch.equal(rng_states[0], rng_states[1])
    assert torch.equal(get_rng_state()["torch"], before)
