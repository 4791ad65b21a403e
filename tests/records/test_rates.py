"""Tests of the learning rates for logging."""

from __future__ import annotations

import torch
from torch import nn

from hookbus.records.rates import named_rates, rates_of


def test_single_group_is_named_lr_and_multiple_groups_are_numbered() -> None:
    weights = [nn.Parameter(torch.zeros(1)) for _ in range(2)]
    one = torch.optim.SGD(weights, lr=0.5)
    two = torch.optim.SGD([{"params": weights[:1], "lr": 0.5}, {"params": weights[1:], "lr": 0.25}])
    assert named_rates(rates_of(one)) == {"lr": 0.5}
    assert named_rates(rates_of(two)) == {"lr/0": 0.5, "lr/1": 0.25}
    assert named_rates(rates_of(None)) == {}


def test_tensor_learning_rate_is_copied() -> None:
    rate = torch.tensor(0.5)
    rates = rates_of(torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=rate))
    rate.fill_(9)
    assert named_rates(rates) == {"lr": 0.5}
