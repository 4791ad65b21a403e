"""How tensors are spread, over one process; the numbers of several are in tests/distributed."""

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

from hookbus.model.layouts import changed, has_spread, is_spread, layout_of, spread_like, whole


@pytest.fixture
def model(tmp_path: Path) -> Iterator[nn.Module]:
    """A model whose weights are spread; its buffers are not."""
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    made = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    fully_shard(made, mesh=init_device_mesh("cpu", (1,)))
    yield made
    dist.destroy_process_group()


def test_leaves_are_changed_and_what_holds_them_is_copied() -> None:
    given = {"a": OrderedDict(b=[1, (2, 3)]), "c": Counter({"d": 4}), 5: None}
    seen: list[tuple[str, ...]] = []

    def change(path: tuple[str, ...], value: Any) -> Any:
        seen.append(path)
        return value and value * 10

    made = changed(given, change)

    assert made == {"a": OrderedDict(b=[10, (20, 30)]), "c": Counter({"d": 40}), 5: None}
    assert type(made["a"]) is OrderedDict
    assert type(made["c"]) is Counter
    assert seen == [("a", "b", "0"), ("a", "b", "1", "0"), ("a", "b", "1", "1"), ("c", "d"), ("5",)]
    assert given["a"] == OrderedDict(b=[1, (2, 3)])


def test_a_model_says_how_it_is_spread(model: nn.Module) -> None:
    layout = layout_of(nn.ModuleDict({"module": model}))

    assert layout is not None
    assert layout == layout_of(model)
    assert layout.spread(torch.ones(4, 2)).placements == layout.placements
    assert layout.empty(torch.ones(4, 2, dtype=torch.int8)).dtype == torch.int8
    assert layout_of(nn.Linear(1, 1)) is None
    assert layout_of(None) is None


def test_spread_tensors_are_found_wherever_they_are(model: nn.Module) -> None:
    weight = next(model.parameters())

    assert is_spread(weight)
    assert has_spread({"a": [1, (weight,)]})
    assert not has_spread({"a": [1, (torch.ones(1),)], "b": "text"})


def test_spread_tensors_become_whole_and_others_stay_what_they_are(model: nn.Module) -> None:
    state = model.state_dict()
    found = whole({"weights": state, "step": 3})

    assert type(found["weights"]["0.weight"]) is torch.Tensor
    assert torch.equal(found["weights"]["0.weight"], state["0.weight"].full_tensor())
    plain = {"a": torch.ones(1)}
    assert whole(plain) is plain


class TestACheckpointOfWholeTensors:
    def test_is_spread_like_the_weights_of_the_run(self, model: nn.Module) -> None:
        optimizer = torch.optim.AdamW(model.parameters())
        bare = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
        other = torch.optim.AdamW(bare.parameters())
        bare(torch.ones(2, 3)).sum().backward()
        other.step()
        averaged = {"0.weight": torch.ones(2, 3), "0.bias": torch.ones(3)}
        given = {
            "state_dict": bare.state_dict(),
            "optimizer": other.state_dict(),
            "hooks": {"ema": {"averaged": averaged}},
            "loop": {"0.weight": 1},
        }
        found = spread_like(given, model, optimizer)

        assert [name for name, value in found["state_dict"].items() if is_spread(value)] == [
            "0.weight",
            "0.bias",
            "1.weight",
            "1.bias",
        ]
        assert {name for name, value in found["optimizer"]["state"][0].items() if is_spread(value)} == {
            "exp_avg",
            "exp_avg_sq",
        }
        assert is_spread(found["hooks"]["ema"]["averaged"]["0.weight"])
        assert not is_spread(found["hooks"]["ema"]["averaged"]["0.bias"]), "it has another shape"
        assert found["loop"] == {"0.weight": 1}
        model.load_state_dict(found["state_dict"])
        optimizer.load_state_dict(found["optimizer"])
        assert torch.equal(model.state_dict()["0.weight"].full_tensor(), bare[0].weight)
        moment = optimizer.state_dict()["state"][0]["exp_avg"]
        assert torch.equal(moment.full_tensor(), other.state_dict()["state"][0]["exp_avg"])

    def test_stays_as_it_is_for_a_model_that_is_not_spread(self) -> None:
        model = nn.Linear(2, 2)

        assert not has_spread(spread_like({"state_dict": model.state_dict()}, model, None))
