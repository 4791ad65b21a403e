"""Average updated on another thread: bitwise identical, and never read during an update."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from hookbus_ema import AsyncMovingAverage, ExponentialMovingAverage


class Gated(AsyncMovingAverage):
    """Average whose updates block until the gate is set."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.gate = threading.Event()

    def _update_on_stream(self, *args: Any) -> None:
        self.gate.wait(30)
        super()._update_on_stream(*args)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 2))


def train(average: ExponentialMovingAverage, model: nn.Module, steps: int, dtype: torch.dtype = torch.float32) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    noise = torch.Generator().manual_seed(1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 4, generator=noise).to(dtype)).square().mean().backward()
        average.wait()
        optimizer.step()
        average.update()


@pytest.mark.parametrize("update_buffers", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_overlapped_average_is_bitwise_identical_to_the_synchronous_one(
    update_buffers: bool, dtype: torch.dtype
) -> None:
    results = []
    for kind in (ExponentialMovingAverage, AsyncMovingAverage):
        average = kind(model := net().to(dtype), 0.9, update_buffers=update_buffers)
        train(average, model, 20, dtype)
        results.append(average.averaged())

    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])


def test_update_returns_before_the_average_is_updated() -> None:
    model = nn.Linear(1, 1)
    average = Gated(model, 0.5, warm_up=0)
    nn.init.ones_(model.weight)
    before = average.averaged()["weight"].clone()
    average.update()
    unchanged = torch.equal(average._averages[0], before)
    average.gate.set()
    average.wait()

    assert unchanged
    assert torch.equal(average._averages[0], torch.lerp(before, torch.ones(1, 1), 0.5))


@pytest.mark.parametrize(
    "read",
    [
        lambda average, model: average.averaged()["weight"].item(),
        lambda average, model: average.state_dict()["averaged"]["weight"].item(),
        lambda average, model: read_applied(average, model),
        lambda average, model: read_updated(average),
    ],
    ids=["averaged", "state_dict", "applied", "update"],
)
def test_reads_wait_for_the_update(read: Callable[[Gated, nn.Linear], float]) -> None:
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    average = Gated(model, 0.5, warm_up=0)
    nn.init.ones_(model.weight)
    average.update()
    threading.Timer(0.1, average.gate.set).start()

    assert read(average, model) == 0.5


def read_applied(average: Gated, model: nn.Linear) -> float:
    with average.applied():
        return model.weight.item()


def read_updated(average: Gated) -> float:
    """Wait for the update and call another one, which does not change an average of 0.5 of a weight of 0.5."""
    average.wait()
    nn.init.constant_(average._weights[0], 0.5)
    average.update()
    return average.averaged()["weight"].item()


def test_buffers_are_updated_before_update_returns() -> None:
    model = nn.BatchNorm1d(1)
    copied, averaged = Gated(model), Gated(model, 0.5, warm_up=0, update_buffers=True)
    model.running_mean.fill_(1.0)
    copied.update()
    averaged.update()
    model.running_mean.fill_(100.0)
    copied.gate.set()
    averaged.gate.set()

    assert copied.averaged()["running_mean"].tolist() == [1.0]
    assert averaged.averaged()["running_mean"].tolist() == [0.5]


@pytest.mark.parametrize("call", [AsyncMovingAverage.wait, AsyncMovingAverage.update, AsyncMovingAverage.averaged])
def test_exception_of_the_other_thread_is_raised_once_by_the_next_call(call: Callable[[Any], Any]) -> None:
    model = nn.Linear(1, 1)
    average = AsyncMovingAverage(model)
    model.weight.data = torch.zeros(7, 7)
    average.update()
    with pytest.raises(RuntimeError, match="shape"):
        call(average)
    average.wait()


def test_closed_average_has_no_thread_until_the_next_update() -> None:
    results, threads = [], set(threading.enumerate())
    for close_after_training in (False, True):
        average = AsyncMovingAverage(model := net(), 0.9)
        for _ in range(2):
            train(average, model, 3)
            if close_after_training:
                average.close()
                assert set(threading.enumerate()) <= threads
        results.append(average.averaged())
        average.close()

    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])
    assert set(threading.enumerate()) <= threads


def test_close_raises_the_exception_of_the_other_thread_and_ends_it() -> None:
    threads, model = set(threading.enumerate()), nn.Linear(1, 1)
    average = AsyncMovingAverage(model)
    model.weight.data = torch.zeros(7, 7)
    average.update()
    with pytest.raises(RuntimeError, match="shape"):
        average.close()
    assert set(threading.enumerate()) <= threads


def test_model_may_have_multiple_averages() -> None:
    model = net()
    fast, slow = AsyncMovingAverage(model, 0.5, warm_up=0), AsyncMovingAverage(model, 0.99, warm_up=0)
    train(fast, model, 3)
    slow.update()

    assert not torch.equal(fast.averaged()["0.weight"], slow.averaged()["0.weight"])
