"""Of a checkpoint that another number of processes has written; the rest is in tests/distributed/test_resume.py."""

from __future__ import annotations

from typing import Any

import torch

from hookbus.checkpoints.parts import add_parts, with_own_part
from hookbus.run import Run
from hookbus.testing import fake_training
from hookbus.training.rng import get_rng_state

CHECKPOINT: dict[str, Any] = {
    "rng": "streams 0",
    "grads": "gradients 0",
    "loop": {"seed": 1, "clock": {"iters_done": 6}, "metrics": "means 0", "data": "place 0"},
}
PART = {"rng": "streams {}", "grads": "gradients {}", "metrics": "means {}", "data": "place {}"}
OF_TWO = {**CHECKPOINT, "ranks": [{key: text.format(rank) for key, text in PART.items()} for rank in (0, 1)]}


def run_of(rank: int, world_size: int) -> Run:
    run = fake_training(epochs=1, batches=1).run
    run.ranks.rank, run.ranks.world_size = rank, world_size
    return run


def test_one_process_adds_nothing() -> None:
    checkpoint = dict(CHECKPOINT)
    add_parts(checkpoint, run_of(0, 1))

    assert checkpoint == CHECKPOINT


def test_a_checkpoint_of_one_process_is_that_of_the_first() -> None:
    assert with_own_part(CHECKPOINT, run_of(0, 1)) == CHECKPOINT
    assert with_own_part(CHECKPOINT, run_of(0, 2)) == CHECKPOINT


def test_each_rank_takes_its_own_part() -> None:
    own = with_own_part(OF_TWO, run_of(1, 2))

    assert (own["rng"], own["grads"]) == ("streams 1", "gradients 1")
    assert own["loop"] == {"seed": 1, "clock": {"iters_done": 6}, "metrics": "means 1", "data": "place 1"}


def test_one_process_goes_on_with_the_part_of_the_first_rank() -> None:
    assert with_own_part(OF_TWO, run_of(0, 1))["loop"] == CHECKPOINT["loop"]


def test_a_rank_that_was_not_there_gets_streams_of_its_own_which_follow_from_seed_rank_and_iteration() -> None:
    before = get_rng_state()["torch"]
    found = [with_own_part(OF_TWO, run_of(rank, 4))["rng"]["torch"] for rank in (2, 3, 2)]

    assert torch.equal(found[0], found[2])
    assert not torch.equal(found[0], found[1])
    assert torch.equal(get_rng_state()["torch"], before)
