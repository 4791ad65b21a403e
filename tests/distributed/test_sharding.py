"""Sharding of tensors with one process; tests/distributed tests the values with multiple processes."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from hookbus.distributed.process_group import destroy_group
from hookbus.distributed.sharding import (
    has_sharded_tensors,
    is_sharded,
    shard_like,
    sharding_of,
    to_full_tensors,
    tree_map_with_path,
)


@pytest.fixture
def model(tmp_path: Path) -> Iterator[nn.Module]:
    """Model with sharded parameters and replicated buffers."""
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    yield model
    destroy_group()


def test_leaves_are_replaced_and_containers_are_copied() -> None:
    tree = {"a": OrderedDict(b=[1, (2, 3)]), "c": Counter({"d": 4}), 5: None}
    seen: list[tuple[str, ...]] = []

    def change(path: tuple[str, ...], value: Any) -> Any:
        seen.append(path)
        return value and value * 10

    copied = tree_map_with_path(tree, change)

    assert copied == {"a": OrderedDict(b=[10, (20, 30)]), "c": Counter({"d": 40}), 5: None}
    assert type(copied["a"]) is OrderedDict
    assert type(copied["c"]) is Counter
    assert seen == [("a", "b", "0"), ("a", "b", "1", "0"), ("a", "b", "1", "1"), ("c", "d"), ("5",)]
    assert tree["a"] == OrderedDict(b=[1, (2, 3)])


def test_sharding_is_that_of_the_parameters_of_a_model(model: nn.Module) -> None:
    layout = sharding_of(nn.ModuleDict({"module": model}))

    assert layout is not None
    assert layout == sharding_of(model)
    assert layout.distribute(torch.ones(4, 2)).placements == layout.placements
    assert layout.empty(torch.ones(4, 2, dtype=torch.int8)).dtype == torch.int8
    assert sharding_of(nn.Linear(1, 1)) is None
    assert sharding_of(None) is None


def test_sharded_tensors_are_found_in_nested_containers(model: nn.Module) -> None:
    weight = next(model.parameters())

    assert is_sharded(weight)
    assert has_sharded_tensors({"a": [1, (weight,)]})
    assert not has_sharded_tensors({"a": [1, (torch.ones(1),)], "b": "text"})


def test_sharded_tensors_become_full_and_other_values_are_unchanged(model: nn.Module) -> None:
    state = model.state_dict()
    full = to_full_tensors({"weights": state, "step": 3})

    assert type(full["weights"]["0.weight"]) is torch.Tensor
    assert torch.equal(full["weights"]["0.weight"], state["0.weight"].full_tensor())
    plain = {"a": torch.ones(1)}
    assert to_full_tensors(plain) is plain


class TestShardedLikeModel:
    def test_checkpoint_is_sharded_like_the_parameters_of_the_run(self, model: nn.Module) -> None:
        optimizer = torch.optim.AdamW(model.parameters())
        bare = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
        other = torch.optim.AdamW(bare.parameters())
        bare(torch.ones(2, 3)).sum().backward()
        other.step()
        averaged = {"0.weight": torch.ones(2, 3), "0.bias": torch.ones(3)}
        checkpoint = {
            "state_dict": bare.state_dict(),
            "optimizer": other.state_dict(),
            "hooks": {"ema": {"averaged": averaged}},
            "loop": {"0.weight": 1},
        }
        sharded = shard_like(checkpoint, model, optimizer)

        assert [name for name, value in sharded["state_dict"].items() if is_sharded(value)] == [
            "0.weight",
            "0.bias",
            "1.weight",
            "1.bias",
        ]
        assert {name for name, value in sharded["optimizer"]["state"][0].items() if is_sharded(value)} == {
            "exp_avg",
            "exp_avg_sq",
        }
        assert is_sharded(sharded["hooks"]["ema"]["averaged"]["0.weight"])
        assert not is_sharded(sharded["hooks"]["ema"]["averaged"]["0.bias"]), "the shape differs"
        assert sharded["loop"] == {"0.weight": 1}
        model.load_state_dict(sharded["state_dict"])
        optimizer.load_state_dict(sharded["optimizer"])
        assert torch.equal(model.state_dict()["0.weight"].full_tensor(), bare[0].weight)
        moment = optimizer.state_dict()["state"][0]["exp_avg"]
        assert torch.equal(moment.full_tensor(), other.state_dict()["state"][0]["exp_avg"])

    def test_checkpoint_is_unchanged_for_an_unsharded_model(self) -> None:
        model = nn.Linear(2, 2)

        assert not has_sharded_tensors(shard_like({"state_dict": model.state_dict()}, model, None))
