"""Tests of the learning rates for logging."""

from __future__ import annotations

import torch
from torch import nn

from hookbus.writers.learning_rates import get_learning_rates, name_learning_rates


def test_single_group_is_named_lr_and_multiple_groups_are_numbered() -> None:
    weights = [nn.Parameter(torch.zeros(1)) for _ in range(2)]
    one = torch.optim.SGD(weights, lr=0.5)
    two = torch.optim.SGD([{"params": weights[:1], "lr": 0.5}, {"params": weights[1:], "lr": 0.25}])
    assert name_learning_rates(get_learning_rates(one)) == {"lr": 0.5}
    assert name_learning_rates(get_learning_rates(two)) == {"lr/0": 0.5, "lr/1": 0.25}
    assert name_learning_rates(get_learning_rates(None)) == {}


def test_tensor_learning_rate_is_copied() -> None:
    rate = torch.tensor(0.5)
    rates = get_learning_rates(torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=rate))
    rate.fill_(9)
    assert name_learning_rates(rates) == {"lr": 0.5}
