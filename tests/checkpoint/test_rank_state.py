"""Tests of rank-specific state in a single process; tests/distributed/test_resume.py covers multiple processes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from hookbus._run.run import Run
from hookbus.bus import HookBus
from hookbus.checkpoint.rank_state import add_rank_states, get_parallel_metadata, reshard, select_rank_state
from hookbus.data.rng import get_rng_state
from hookbus.distributed.collectives import Collectives
from hookbus.errors import CheckpointError
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


def make_run_of_rank(rank: int, world_size: int) -> Run:
    run = fake_training(epochs=1, batches=1).run
    run.ranks.rank, run.ranks.world_size = rank, world_size
    return run


def test_single_process_adds_no_rank_states() -> None:
    checkpoint = dict(CHECKPOINT)
    add_rank_states(checkpoint, make_run_of_rank(0, 1))

    assert checkpoint == CHECKPOINT


def test_checkpoint_of_a_single_process_is_the_state_of_rank_0() -> None:
    assert select_rank_state(CHECKPOINT, make_run_of_rank(0, 1)) == CHECKPOINT
    assert select_rank_state(CHECKPOINT, make_run_of_rank(0, 2)) == CHECKPOINT


def test_each_rank_selects_its_own_state() -> None:
    own = select_rank_state(WORLD_SIZE_2, make_run_of_rank(1, 2))

    assert (own["rng"], own["grads"]) == ("rng 1", "gradients 1")
    assert own["loop"] == {"seed": 1, "clock": {"iters_done": 6}, "metrics": "means 1", "data": "position 1"}


def test_single_process_resumes_with_the_state_of_rank_0() -> None:
    assert select_rank_state(WORLD_SIZE_2, make_run_of_rank(0, 1))["loop"] == CHECKPOINT["loop"]


def test_new_rank_is_reseeded_from_seed_rank_and_iteration() -> None:
    runs = [make_run_of_rank(rank, 4) for rank in (2, 3, 2)]
    before = get_rng_state()["torch"]
    rng_states = [select_rank_state(WORLD_SIZE_2, run)["rng"]["torch"] for run in runs]

    assert torch.equal(rng_states[0], rng_states[2])
    assert not torch.equal(rng_states[0], rng_states[1])
    assert torch.equal(get_rng_state()["torch"], before)


def make_run(processes: int, batch_size: int | None, rank: int = 0) -> Run:
    """Create a run with a world size and rank, in a single process."""
    ranks = Collectives()
    ranks.rank, ranks.world_size = rank, processes
    run = HookBus().current
    run.ranks = ranks
    run.train_loader = [1, 2] if batch_size is None else DataLoader(torch.ones(8), batch_size)  # type: ignore[arg-type]
    return run


def make_rank_state(rank: int) -> dict[str, Any]:
    column = {"values": [float(rank)], "count": 1, "open": False}
    metrics = {"columns": {"train/loss": column}, "windows": {}, "results": {}}
    return {"rng": f"rng of {rank}", "metrics": metrics, "data": {"position": rank}}


def make_checkpoint(processes: int, batch_size: int | None, **more: Any) -> dict[str, Any]:
    own = make_rank_state(0)
    return {
        "meta": {"processes": processes, "batch_size": batch_size},
        "rng": own["rng"],
        "loop": {"metrics": own["metrics"], "data": own["data"], "seed": 1, "clock": {"iters_done": 2}},
        **({"ranks": [make_rank_state(rank) for rank in range(processes)]} if processes > 1 else {}),
        **more,
    }


def test_parallel_metadata_contains_world_size_and_batch_size() -> None:
    assert get_parallel_metadata(make_run(3, 4)) == {"processes": 3, "batch_size": 4}
    assert get_parallel_metadata(make_run(1, None)) == {"processes": 1, "batch_size": None}


def test_same_world_size_leaves_the_checkpoint_unchanged() -> None:
    checkpoint = make_checkpoint(2, 8)

    assert reshard(checkpoint, make_run(2, 4)) is checkpoint


def test_existing_rank_keeps_its_rng_and_gets_the_position_of_rank_0() -> None:
    resumed = select_rank_state(reshard(make_checkpoint(2, 4), make_run(4, 2, rank=1)), make_run(4, 2, rank=1))

    assert resumed["rng"] == "rng of 1"
    assert resumed["loop"]["data"] == {"position": 0}


@pytest.mark.parametrize(("processes", "rank"), [(1, 0), (4, 1), (4, 3)], ids=["single", "existing", "new"])
def test_all_ranks_get_the_mean_of_the_logged_values(processes: int, rank: int) -> None:
    run = make_run(processes, 8 // processes, rank)
    resumed = select_rank_state(reshard(make_checkpoint(2, 4), run), run)

    assert resumed["loop"]["metrics"]["columns"]["train/loss"]["values"] == [0.5]


def test_new_rank_is_reseeded() -> None:
    run = make_run(4, 2, rank=3)
    resumed = select_rank_state(reshard(make_checkpoint(2, 4), run), run)
    other = select_rank_state(reshard(make_checkpoint(1, 8), run), run)

    assert resumed["loop"]["data"] == other["loop"]["data"] == {"position": 0}
    assert torch.equal(resumed["rng"]["torch"], other["rng"]["torch"])
    assert resumed["rng"].keys() >= {"python", "torch"}


def test_single_process_gets_the_state_of_rank_0() -> None:
    run = make_run(1, 8)
    resumed = select_rank_state(reshard(make_checkpoint(2, 4), run), run)

    assert resumed["rng"] == "rng of 0"
    assert resumed["loop"]["data"] == {"position": 0}


def test_gradients_become_their_mean_over_the_ranks() -> None:
    grads = [{"a": torch.tensor([1.0, 2.0])}, {"a": torch.tensor([3.0, 6.0]), "b": torch.tensor([4.0])}]
    checkpoint = make_checkpoint(2, 4, grads=grads[0])
    for rank, rank_grads in enumerate(grads):
        checkpoint["ranks"][rank]["grads"] = rank_grads
    for rank in range(4):
        run = make_run(4, 2, rank)
        resumed = select_rank_state(reshard(checkpoint, run), run)["grads"]
        assert {name: grad.tolist() for name, grad in resumed.items()} == {"a": [2.0, 4.0], "b": [2.0]}


def test_gradients_of_a_single_process_are_copied_to_all_ranks() -> None:
    run = make_run(2, 4, rank=1)
    resumed = select_rank_state(reshard(make_checkpoint(1, 8, grads={"a": torch.tensor([3.0])}), run), run)

    assert resumed["grads"]["a"].tolist() == [3.0]


def test_different_samples_per_iteration_raises_with_the_batch_size_to_set() -> None:
    with pytest.raises(CheckpointError) as caught:
        reshard(make_checkpoint(2, 8), make_run(4, 8))

    assert str(caught.value) == (
        "dataset.batch_size: the checkpoint has 2 processes with 8 samples each, and this run 4 with 8: expected 16 "
        "samples per iteration, got 32. Set `dataset.batch_size` to 4 (`batch_size` of the train_loader), or set "
        "`load_from` to start from the weights alone."
    )


def test_world_size_that_does_not_divide_the_samples_raises() -> None:
    with pytest.raises(CheckpointError, match="Use a world size that divides 16"):
        reshard(make_checkpoint(2, 8), make_run(3, 8))


@pytest.mark.parametrize(("saved", "now"), [(None, 8), (8, None)])
def test_unknown_batch_size_is_logged(saved: int | None, now: int | None, caplog: pytest.LogCaptureFixture) -> None:
    reshard(make_checkpoint(2, saved), make_run(1, now))

    assert caplog.messages == [
        "The checkpoint was written with world size 2, and this run has world size 1. Check that the number of samples "
        "per iteration, summed over the ranks, is the same."
    ]


def test_checkpoint_without_a_world_size_is_from_a_single_process() -> None:
    checkpoint = make_checkpoint(1, 8)
    checkpoint["meta"] = {}

    assert reshard(checkpoint, make_run(1, 8)) is checkpoint


@pytest.mark.parametrize("saved", [(2, 6), (1, 12)], ids=["fewer", "more"])
def test_changed_batch_size_is_adapted_to_the_world_size(saved: tuple[int, int]) -> None:
    processes, size = saved
    checkpoint = make_checkpoint(processes, size)
    for data in [checkpoint["loop"]["data"], *(state["data"] for state in checkpoint.get("ranks", ()))]:
        data["batch_size"] = size
    # The loader has another size, which the changed one replaces.
    run = make_run(3, 5, rank=1)

    assert select_rank_state(reshard(checkpoint, run), run)["loop"]["data"]["batch_size"] == 4
    with pytest.raises(CheckpointError, match="Use a world size that divides 12"):
        reshard(checkpoint, make_run(5, 5))
