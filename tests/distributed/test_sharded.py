"""Sharded checkpoints, loaded with another number of processes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from hookbus.checkpoint.generations import read_manifest
from hookbus.checkpoint.state import read_checkpoint
from tests.torch_versions import requires_torch

if TYPE_CHECKING:
    from tests.distributed.conftest import Launch

# Each launch has its own time limit.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), requires_torch("fully_shard")]

MODEL = """
    import sys
    from pathlib import Path

    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from hookbus.distributed.sharding import tree_map_with_path, is_sharded, sharding_of, shard_like
    from hookbus.distributed.process_collectives import get_collectives
    from hookbus.checkpoint.sharded import read_generation, write_generation

    FOLDER = Path(sys.argv[1])
    ranks = get_collectives()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 3))
    for module in (model[0], model):
        fully_shard(module, mesh=init_device_mesh("cpu", (ranks.world_size,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

    def train():
        torch.manual_seed(7)
        optimizer.zero_grad()
        model(torch.randn(6, 7)).square().mean().backward()
        optimizer.step()

    def build_checkpoint():
        return {
            "meta": {"step": 1},
            "state_dict": dict(model.state_dict()),
            "optimizer": optimizer.state_dict(),
            "hooks": {"ema/%": {"averaged": [average]}, "other": {"shared": average}},
            "rank": ranks.rank,
            "loop": {"id": "a-run"},
        }

    def copy_full(value):
        def copy(_, leaf):
            if is_sharded(leaf):
                return leaf.full_tensor()
            return leaf.clone() if isinstance(leaf, torch.Tensor) else leaf

        return tree_map_with_path(value, copy)
"""

WRITE = """
    train()
    average = model[0].weight.detach().clone()
    pointer = write_generation(FOLDER, build_checkpoint(), 1, ranks)
    expected = copy_full(build_checkpoint())
    train()
    after = copy_full(build_checkpoint())
    if ranks.is_main:
        torch.save({"checkpoint": expected, "after": after}, FOLDER / "expected.pt")
    report(pointer)
"""

READ_AND_WRITE = """
    loaded = read_generation(FOLDER / "generation_1", sharding=sharding_of(model))
    model.load_state_dict(loaded["state_dict"])
    optimizer.load_state_dict(loaded["optimizer"])
    average = loaded["hooks"]["other"]["shared"]
    write_generation(FOLDER, build_checkpoint(), 2, ranks)
    train()
    after = copy_full(build_checkpoint())
    if ranks.is_main:
        torch.save(after, FOLDER / "after.pt")
    report({"shared": average is loaded["hooks"]["ema/%"]["averaged"][0], "rank": loaded["rank"]})
"""


def is_equal(one: Any, other: Any) -> bool:
    """Return whether two checkpoints are bitwise identical."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(is_equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(is_equal, one, other))
    return bool(one == other)


def test_checkpoint_of_two_ranks_is_bitwise_identical_on_one_and_four_ranks(launch: Launch, tmp_path: Path) -> None:
    two_ranks = launch(MODEL + WRITE, str(tmp_path))
    expected = torch.load(tmp_path / "expected.pt", weights_only=True)
    first = read_checkpoint(tmp_path / "generation_1")

    assert two_ranks.reports[0] == two_ranks.reports[1]
    assert two_ranks.reports[0]["generation"]["directory"] == "generation_1"
    assert is_equal(first, expected["checkpoint"])

    four_ranks = launch(MODEL + READ_AND_WRITE, str(tmp_path), ranks=4)
    second = read_checkpoint(tmp_path / "generation_2")

    assert four_ranks.reports == {rank: {"shared": True, "rank": 0} for rank in range(4)}
    assert is_equal(second, first)
    after = torch.load(tmp_path / "after.pt", weights_only=True)
    for name, value in expected["after"]["state_dict"].items():
        torch.testing.assert_close(after["state_dict"][name], value, rtol=1e-6, atol=1e-7)
    assert read_manifest(tmp_path / "generation_2")["processes"] == 4
