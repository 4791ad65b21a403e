"""Averages of sharded weights in a process group of size 1. The tests of the core use larger groups."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode

from hookbus_ema import ExponentialMovingAverage
from hookbus_ema.exponential import AsyncMovingAverage
from tests.torch_versions import requires_torch

KINDS = [ExponentialMovingAverage, AsyncMovingAverage]


@pytest.fixture(autouse=True)
def _group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def models() -> tuple[nn.Module, nn.Module]:
    """Return a model and a copy of it with sharded weights."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 2))
    sharded = copy.deepcopy(plain)
    fully_shard(sharded, mesh=init_device_mesh("cpu", (1,)), reshard_after_forward=True)
    return plain, sharded


def train(model: nn.Module, average: ExponentialMovingAverage, steps: int = 5) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    noise = torch.Generator().manual_seed(1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 3, generator=noise)).square().mean().backward()
        average.wait()
        optimizer.step()
        average.update()
    average.wait()


def to_full_tensor(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


@requires_torch("distributed: fsdp2")
@pytest.mark.parametrize("kind", KINDS)
def test_sharded_average_is_bitwise_identical_to_the_plain_one(kind: type[ExponentialMovingAverage]) -> None:
    plain, sharded = models()
    one, other = kind(plain, 0.9), kind(sharded, 0.9)
    train(plain, one)
    train(sharded, other)

    for name, average in one.averaged().items():
        assert torch.equal(to_full_tensor(other.averaged()[name]), average), name
    assert isinstance(other.averaged()["0.weight"], DTensor)
    other.close()
    one.close()


def test_update_does_not_communicate() -> None:
    _, sharded = models()
    average = ExponentialMovingAverage(sharded)
    with CommDebugMode() as communication:
        average.update()
        with average.applied():
            pass

    assert communication.get_total_counts() == 0


@requires_torch("distributed: fsdp2")
def test_sharded_average_is_in_the_model_inside_applied_only() -> None:
    plain, sharded = models()
    average = ExponentialMovingAverage(sharded, 0.5, warm_up=0)
    train(sharded, average)
    raw = {name: to_full_tensor(value).clone() for name, value in sharded.state_dict().items()}
    batch = torch.ones(2, 3)
    expected = copy.deepcopy(plain)
    expected.load_state_dict({name: to_full_tensor(value) for name, value in average.averaged().items()})
    with average.applied(), torch.no_grad():
        assert torch.equal(sharded.eval()(batch), expected.eval()(batch))

    assert all(torch.equal(to_full_tensor(value), raw[name]) for name, value in sharded.state_dict().items())
    expected.load_state_dict(raw)
    with torch.no_grad():
        assert torch.equal(sharded(batch), expected(batch))


def test_sharded_average_loads_full_and_sharded_averages() -> None:
    plain, sharded = models()
    one = ExponentialMovingAverage(plain, 0.9)
    train(plain, one)
    other = ExponentialMovingAverage(sharded, 0.9)
    other.load_state_dict(one.state_dict())
    third = ExponentialMovingAverage(sharded, 0.9)
    third.load_state_dict(other.state_dict())

    for name, average in one.averaged().items():
        assert torch.equal(to_full_tensor(other.averaged()[name]), average)
        assert torch.equal(to_full_tensor(third.averaged()[name]), average)
