"""The learning rates of an optimizer, as they are recorded."""

from __future__ import annotations

import torch
from torch import nn

from hookbus.records.rates import named_rates, rates_of


def test_one_group_is_lr_and_several_are_numbered() -> None:
    weights = [nn.Parameter(torch.zeros(1)) for _ in range(2)]
    one = torch.optim.SGD(weights, lr=0.5)
    two = torch.optim.SGD([{"params": weights[:1], "lr": 0.5}, {"params": weights[1:], "lr": 0.25}])
    assert named_rates(rates_of(one)) == {"lr": 0.5}
    assert named_rates(rates_of(two)) == {"lr/0": 0.5, "lr/1": 0.25}
    assert named_rates(rates_of(None)) == {}


def test_a_rate_that_is_a_tensor_is_kept_as_it_was() -> None:
    rate = torch.tensor(0.5)
    noted = rates_of(torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=rate))
    rate.fill_(9)
    assert named_rates(noted) == {"lr": 0.5}
