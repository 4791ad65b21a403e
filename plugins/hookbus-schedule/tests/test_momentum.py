from __future__ import annotations

import pytest
import torch
from torch.optim.lr_scheduler import ExponentialLR, LinearLR

from hookbus_schedule.scheduler_entries import MomentumSchedule


def make_weight() -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.zeros(1))


def test_scheduler_changes_the_momentum_and_not_the_learning_rate() -> None:
    optimizer = torch.optim.SGD(
        [{"params": [make_weight()]}, {"params": [make_weight()], "momentum": 0.4}], lr=0.1, momentum=0.8
    )
    schedule = MomentumSchedule(optimizer, lambda proxy: ExponentialLR(proxy, 0.5))
    schedule.step()

    assert [group["momentum"] for group in optimizer.param_groups] == [0.4, 0.2]
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.1]


def test_beta1_of_adam_is_scheduled_from_the_start() -> None:
    optimizer = torch.optim.Adam([make_weight()], lr=0.1, betas=(0.8, 0.99))
    schedule = MomentumSchedule(optimizer, lambda proxy: LinearLR(proxy, start_factor=0.5, total_iters=2))
    assert optimizer.param_groups[0]["betas"] == (0.4, 0.99)
    schedule.step()

    assert optimizer.param_groups[0]["betas"] == (pytest.approx(0.6), 0.99)


def test_state_is_restored() -> None:
    first = torch.optim.SGD([make_weight()], lr=0.1, momentum=0.8)
    schedule = MomentumSchedule(first, lambda proxy: ExponentialLR(proxy, 0.5))
    schedule.step()
    second = torch.optim.SGD([make_weight()], lr=0.1, momentum=0.8)
    resumed = MomentumSchedule(second, lambda proxy: ExponentialLR(proxy, 0.5))
    second.load_state_dict(first.state_dict())
    resumed.load_state_dict(schedule.state_dict())
    resumed.step()

    assert second.param_groups[0]["momentum"] == pytest.approx(0.2)


def test_optimizer_without_momentum_is_an_error() -> None:
    with pytest.raises(ValueError, match="must have momentum or betas"):
        MomentumSchedule(torch.optim.Adagrad([make_weight()]), lambda proxy: ExponentialLR(proxy, 0.5))


def test_group_that_is_added_later_is_scheduled() -> None:
    optimizer = torch.optim.SGD([make_weight()], lr=0.1, momentum=0.8)
    schedule = MomentumSchedule(optimizer, lambda proxy: ExponentialLR(proxy, 0.5))
    schedule.step()
    optimizer.add_param_group({"params": [make_weight()], "momentum": 0.6})
    schedule.step()

    assert [group["momentum"] for group in optimizer.param_groups] == [0.2, 0.3]
