"""A factor of the learning rates applies to the whole schedule of every scheduler of torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, lr_scheduler

from hookbus._training.learning_rates import scale_learning_rates
from hookbus.errors import ConfigError

RATES = [0.1, 0.01]
SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "OneCycleLR": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, RATES, total_steps=12),
    "CyclicLR": lambda optimizer: lr_scheduler.CyclicLR(optimizer, [0.01, 0.001], RATES, 3, cycle_momentum=False),
    "LambdaLR": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step),
    "ReduceLROnPlateau": lambda optimizer: lr_scheduler.ReduceLROnPlateau(optimizer, patience=1),
    "CosineAnnealingWarmRestarts": lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 4),
    "ChainedScheduler": lambda optimizer: lr_scheduler.ChainedScheduler(
        [lr_scheduler.StepLR(optimizer, 3), lr_scheduler.ExponentialLR(optimizer, 0.5)]
    ),
    "SequentialLR": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer,
        [lr_scheduler.LinearLR(optimizer, 0.25, total_iters=4), lr_scheduler.CosineAnnealingLR(optimizer, 8)],
        [4],
    ),
}


def schedule(name: str, factor: float) -> list[list[float]]:
    """Return the learning rates of each step, after they were multiplied by a factor."""
    groups = [{"params": [nn.Parameter(torch.zeros(1))], "lr": rate} for rate in RATES]
    optimizer = SGD(groups, momentum=0.9)
    scheduler = SCHEDULERS[name](optimizer)
    # A scheduler that is passed twice is scaled once.
    scale_learning_rates([optimizer, optimizer], [scheduler, scheduler], factor)
    rates = [scheduler.get_last_lr()]
    for _ in range(11):
        optimizer.step()
        scheduler.step(*([1.0] if name == "ReduceLROnPlateau" else []))
        rates.append([group["lr"] for group in optimizer.param_groups])
    return rates


@pytest.mark.parametrize("name", SCHEDULERS)
def test_each_learning_rate_of_the_schedule_is_multiplied(name: str) -> None:
    scaled, plain = schedule(name, 4.0), schedule(name, 1.0)
    assert len({rate for rates in plain for rate in rates}) > 2
    for rates, others in zip(scaled, plain, strict=True):
        assert rates == pytest.approx([4 * rate for rate in others], rel=1e-12)


def test_tensor_is_multiplied_once_in_place() -> None:
    rate = torch.tensor(0.5)
    optimizer = torch.optim.Adam([nn.Parameter(torch.zeros(1))], lr=rate)
    scheduler = lr_scheduler.StepLR(optimizer, 1)
    scheduler._last_lr = [optimizer.param_groups[0]["lr"]]  # as in earlier versions of torch
    scale_learning_rates([optimizer], [scheduler], 2.0)
    assert optimizer.param_groups[0]["lr"] is rate
    assert rate.item() == 1.0
    assert float(scheduler.base_lrs[0]) == 1.0


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan"), float("inf")])
def test_factor_that_is_no_positive_number_is_refused(factor: float) -> None:
    with pytest.raises(ConfigError, match="expected a finite number > 0"):
        scale_learning_rates([], [], factor)
