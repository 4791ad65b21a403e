"""The formula; what real processes make of it is in tests/distributed."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from hookbus.ranks import Ranks
from hookbus_sync.agreeing import agree, spread

values = st.floats(-1e3, 1e3)


def tensor(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


@given(st.lists(st.lists(values, min_size=3, max_size=3), min_size=1, max_size=5))
def test_spreads_are_on_average_the_variance_of_all_samples(parts: list[list[float]]) -> None:
    processes = torch.tensor(parts, dtype=torch.float64)
    within, own = processes.var(1, correction=0), processes.mean(1)

    found = spread(within, own, processes.mean()).mean()

    assert torch.allclose(found, processes.var(correction=0), rtol=1e-9, atol=1e-9)


def test_the_mean_of_variances_would_miss_what_lies_between() -> None:
    within, own = tensor(1.0, 1.2), tensor(-5.0, 4.0)

    # 1.1 within, and (4.5^2 + 4.5^2) / 2 = 20.25 between
    assert torch.allclose(spread(within, own, own.mean()).mean(), tensor(21.35))


def test_with_one_process_nothing_changes() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3), nn.LayerNorm(3))
    model(torch.randn(8, 3))
    before = {name: value.clone() for name, value in model.state_dict().items()}

    agree(model.state_dict(), Ranks())

    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_nothing_to_agree_on_is_no_error() -> None:
    agree({}, Ranks())
