"""What becomes of a checkpoint in a run of another number of processes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from hookbus.bus import HookBus
from hookbus.checkpoints.parts import with_own_part
from hookbus.checkpoints.world_size import resized, size_of
from hookbus.errors import CheckpointError
from hookbus.ranks import Ranks
from hookbus.run import Run


def run_of(processes: int, batch_size: int | None, rank: int = 0) -> Run:
    """A run that says it is of so many processes."""
    ranks = Ranks()
    ranks.rank, ranks.world_size = rank, processes
    run = HookBus().current
    run.ranks = ranks
    run.train_loader = [1, 2] if batch_size is None else DataLoader(torch.ones(8), batch_size)  # type: ignore[arg-type]
    return run


def part(number: int, **more: Any) -> dict[str, Any]:
    return {"rng": f"streams of {number}", "metrics": f"sums of {number}", "data": f"place of {number}", **more}


def checkpoint(processes: int, batch_size: int | None, **more: Any) -> dict[str, Any]:
    own = part(0)
    return {
        "meta": {"processes": processes, "batch_size": batch_size},
        "rng": own["rng"],
        "loop": {"metrics": own["metrics"], "data": own["data"], "seed": 1, "clock": {"iters_done": 2}},
        **({"ranks": [part(number) for number in range(processes)]} if processes > 1 else {}),
        **more,
    }


def test_a_checkpoint_tells_how_many_processes_and_samples_it_is_of() -> None:
    assert size_of(run_of(3, 4)) == {"processes": 3, "batch_size": 4}
    assert size_of(run_of(1, None)) == {"processes": 1, "batch_size": None}


def test_as_many_processes_go_on_as_they_were() -> None:
    given = checkpoint(2, 8)

    assert resized(given, run_of(2, 4)) is given


def test_those_that_were_there_keep_their_streams_and_all_have_the_place_of_the_main_one() -> None:
    one = with_own_part(resized(checkpoint(2, 4), run_of(4, 2, rank=1)), run_of(4, 2, rank=1))

    assert one["rng"] == "streams of 1"
    assert one["loop"]["data"] == "place of 0"
    assert one["loop"]["metrics"] == "sums of 0"


def test_a_new_process_has_streams_of_its_own() -> None:
    run = run_of(4, 2, rank=3)
    found = with_own_part(resized(checkpoint(2, 4), run), run)
    other = with_own_part(resized(checkpoint(1, 8), run), run)

    assert found["loop"]["data"] == other["loop"]["data"] == "place of 0"
    assert torch.equal(found["rng"]["torch"], other["rng"]["torch"])
    assert found["rng"].keys() >= {"python", "torch"}


def test_one_process_goes_on_as_the_main_one() -> None:
    run = run_of(1, 8)
    found = with_own_part(resized(checkpoint(2, 4), run), run)

    assert found["rng"] == "streams of 0"
    assert found["loop"]["data"] == "place of 0"


def test_gradients_of_several_become_their_mean() -> None:
    grads = [{"a": torch.tensor([1.0, 2.0])}, {"a": torch.tensor([3.0, 6.0]), "b": torch.tensor([4.0])}]
    given = checkpoint(2, 4, grads=grads[0])
    for number, each in enumerate(grads):
        given["ranks"][number]["grads"] = each
    for rank in range(4):
        run = run_of(4, 2, rank)
        found = with_own_part(resized(given, run), run)["grads"]
        assert {name: each.tolist() for name, each in found.items()} == {"a": [2.0, 4.0], "b": [2.0]}


def test_gradients_of_one_are_those_of_all() -> None:
    run = run_of(2, 4, rank=1)
    found = with_own_part(resized(checkpoint(1, 8, grads={"a": torch.tensor([3.0])}), run), run)

    assert found["grads"]["a"].tolist() == [3.0]


def test_another_number_of_samples_is_refused_with_the_number_to_set() -> None:
    with pytest.raises(CheckpointError) as caught:
        resized(checkpoint(2, 8), run_of(4, 8))

    assert str(caught.value) == (
        "dataset.batch_size: the checkpoint is of 2 processes with 8 samples each, and this run of 4 with 8: an "
        "iteration would be of 32 samples instead of 16. Say dataset.batch_size: 4 (batch_size of the train_loader), "
        "or load_from to start from the weights alone."
    )


def test_a_number_of_processes_that_does_not_divide_them_is_refused_as_such() -> None:
    with pytest.raises(CheckpointError, match="Take a number of processes that divides 16"):
        resized(checkpoint(2, 8), run_of(3, 8))


@pytest.mark.parametrize(("saved", "now"), [(None, 8), (8, None)])
def test_what_cannot_be_told_is_said(saved: int | None, now: int | None, caplog: pytest.LogCaptureFixture) -> None:
    resized(checkpoint(2, saved), run_of(1, now))

    assert caplog.messages == [
        "The checkpoint is of 2 processes, and this run has 1: see that an iteration has as many samples in all."
    ]


def test_a_checkpoint_that_tells_of_no_processes_is_of_one() -> None:
    given = checkpoint(1, 8)
    given["meta"] = {}

    assert resized(given, run_of(1, 8)) is given
