"""Tests of the size of checkpoints before a training."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from hookbus import Hook, HookBus
from hookbus.checkpoint import estimate_checkpoint_size


class Averaging(Hook):
    averages_weights = True


def estimate(build: Any, *hooks: Hook, **options: Any) -> int | None:
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5))
    optimizer = build(model.parameters())
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with HookBus(hooks).run(model=model, optimizer=optimizer, iterations=1) as run:
        size = estimate_checkpoint_size(run, **options)
    assert not optimizer.state
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    return size


# 3 * 5 + 5 parameters of the layer, 2 * 5 of the normalization and its 2 * 5 statistics of 4 bytes, a counter of 8.
PARAMETERS, MODEL = 4 * 30, 4 * 40 + 8


@pytest.mark.parametrize(
    ("build", "state"),
    [
        (lambda parameters: torch.optim.SGD(parameters, lr=0.1), 0),
        (lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9), PARAMETERS),
        # Two moments, and a step of 4 bytes for each of the 4 parameters.
        (lambda parameters: torch.optim.AdamW(parameters), 2 * PARAMETERS + 4 * 4),
    ],
)
def test_size_is_that_of_model_and_optimizer(build: Any, state: int) -> None:
    assert estimate(build) == MODEL + state
    assert estimate(build, optimizer=False) == MODEL


def test_each_average_counts_as_a_model() -> None:
    assert estimate(lambda p: torch.optim.SGD(p, lr=0.1), Averaging(name="a"), Averaging(name="b")) == 3 * MODEL


def test_size_is_unknown_if_the_optimizer_cannot_be_copied() -> None:
    class Closing(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            return closure()

    assert estimate(lambda parameters: Closing(parameters, lr=0.1)) is None
