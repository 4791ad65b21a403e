"""Generations written by real processes, and read by another number of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from hookbus.checkpoints.generations import read_manifest
from hookbus.state import read_checkpoint

if TYPE_CHECKING:
    from tests.distributed.conftest import Launch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # each launch has a limit of its own

MODEL = """
    import sys
    from pathlib import Path

    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from hookbus.model.layouts import changed, is_spread, layout_of, spread_like
    from hookbus.ranks import join
    from hookbus.checkpoints.sharded import read_generation, write_generation

    FOLDER = Path(sys.argv[1])
    ranks = join()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 3))
    for part in (model[0], model):
        fully_shard(part, mesh=init_device_mesh("cpu", (ranks.world_size,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

    def train():
        torch.manual_seed(7)
        optimizer.zero_grad()
        model(torch.randn(6, 7)).square().mean().backward()
        optimizer.step()

    def checkpoint():
        return {
            "meta": {"step": 1},
            "state_dict": dict(model.state_dict()),
            "optimizer": optimizer.state_dict(),
            "hooks": {"ema/%": {"averaged": [average]}, "other": {"the same": average}},
            "rank": ranks.rank,
            "loop": {"id": "a-run"},
        }

    def whole(value):
        def copy(_, each):
            if is_spread(each):
                return each.full_tensor()
            return each.clone() if isinstance(each, torch.Tensor) else each

        return changed(value, copy)
"""

WRITE = """
    train()
    average = model[0].weight.detach().clone()
    pointer = write_generation(FOLDER, checkpoint(), 1, ranks)
    expected = whole(checkpoint())
    train()
    after = whole(checkpoint())
    if ranks.is_main:
        torch.save({"checkpoint": expected, "after": after}, FOLDER / "expected.pt")
    answer(pointer)
"""

READ_AND_WRITE = """
    found = read_generation(FOLDER / "generation_1", layout=layout_of(model))
    model.load_state_dict(found["state_dict"])
    optimizer.load_state_dict(found["optimizer"])
    average = found["hooks"]["other"]["the same"]
    write_generation(FOLDER, checkpoint(), 2, ranks)
    train()
    after = whole(checkpoint())
    if ranks.is_main:
        torch.save(after, FOLDER / "after.pt")
    answer({"shared": average is found["hooks"]["ema/%"]["averaged"][0], "rank": found["rank"]})
"""


def script(*parts: str) -> str:
    return "".join(parts)


def equal(one: Any, other: Any) -> bool:
    """Whether two checkpoints are the same, bit for bit."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


def test_two_processes_write_four_go_on_and_one_reads_the_same_bits(launch: Launch, tmp_path: Path) -> None:
    by_two = launch(script(MODEL, WRITE), str(tmp_path))
    expected = torch.load(tmp_path / "expected.pt", weights_only=True)
    first = read_checkpoint(tmp_path / "generation_1")

    assert by_two.answers[0] == by_two.answers[1]
    assert by_two.answers[0]["generation"]["directory"] == "generation_1"
    assert equal(first, expected["checkpoint"])

    by_four = launch(script(MODEL, READ_AND_WRITE), str(tmp_path), ranks=4)
    second = read_checkpoint(tmp_path / "generation_2")

    assert by_four.answers == {rank: {"shared": True, "rank": 0} for rank in range(4)}
    assert equal(second, first)
    after = torch.load(tmp_path / "after.pt", weights_only=True)
    for name, value in expected["after"]["state_dict"].items():
        torch.testing.assert_close(after["state_dict"][name], value, rtol=1e-6, atol=1e-7)
    assert read_manifest(tmp_path / "generation_2")["processes"] == 4
