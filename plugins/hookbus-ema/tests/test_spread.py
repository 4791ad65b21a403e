"""The average of weights that are spread over processes; here over one, and in the tests of the core over several."""

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
from hookbus_ema.overlap import OverlappedAverage

KINDS = [ExponentialMovingAverage, OverlappedAverage]


@pytest.fixture(autouse=True)
def _group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def models() -> tuple[nn.Module, nn.Module]:
    """The same model twice; the weights of the second are spread."""
    torch.manual_seed(0)
    whole = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 2))
    spread = copy.deepcopy(whole)
    fully_shard(spread, mesh=init_device_mesh("cpu", (1,)), reshard_after_forward=True)
    return whole, spread


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


def full(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_that_of_whole_weights_bit_for_bit(kind: type[ExponentialMovingAverage]) -> None:
    whole, spread = models()
    one, other = kind(whole, 0.9), kind(spread, 0.9)
    train(whole, one)
    train(spread, other)

    for name, average in one.averaged().items():
        assert torch.equal(full(other.averaged()[name]), average), name
    assert isinstance(other.averaged()["0.weight"], DTensor)
    other.close()
    one.close()


def test_an_update_sends_nothing() -> None:
    _, spread = models()
    average = ExponentialMovingAverage(spread)
    with CommDebugMode() as watch:
        average.update()
        with average.applied():
            pass

    assert watch.get_total_counts() == 0


def test_it_is_in_the_model_while_it_is_applied_and_no_longer() -> None:
    whole, spread = models()
    average = ExponentialMovingAverage(spread, 0.5, warm_up=0)
    train(spread, average)
    raw = {name: full(value).clone() for name, value in spread.state_dict().items()}
    batch = torch.ones(2, 3)
    expected = copy.deepcopy(whole)
    expected.load_state_dict({name: full(value) for name, value in average.averaged().items()})
    with average.applied(), torch.no_grad():
        assert torch.equal(spread.eval()(batch), expected.eval()(batch))

    assert all(torch.equal(full(value), raw[name]) for name, value in spread.state_dict().items())
    expected.load_state_dict(raw)
    with torch.no_grad():
        assert torch.equal(spread(batch), expected(batch))


def test_it_goes_on_from_whole_averages_and_from_spread_ones() -> None:
    whole, spread = models()
    one = ExponentialMovingAverage(whole, 0.9)
    train(whole, one)
    other = ExponentialMovingAverage(spread, 0.9)
    other.load_state_dict(one.state_dict())
    third = ExponentialMovingAverage(spread, 0.9)
    third.load_state_dict(other.state_dict())

    for name, average in one.averaged().items():
        assert torch.equal(full(other.averaged()[name]), average)
        assert torch.equal(full(third.averaged()[name]), average)
