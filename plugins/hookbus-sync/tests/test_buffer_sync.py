"""The formula of the variance. Multiple processes are tested in tests/distributed."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from hookbus.distributed.collectives import Collectives
from hookbus_sync.buffer_sync import sync_tensors, variance_across_ranks

values = st.floats(-1e3, 1e3)


def tensor(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


@given(st.lists(st.lists(values, min_size=3, max_size=3), min_size=1, max_size=5))
def test_mean_of_contributions_is_the_variance_of_all_samples(parts: list[list[float]]) -> None:
    samples = torch.tensor(parts, dtype=torch.float64)
    within, own = samples.var(1, correction=0), samples.mean(1)

    variance = variance_across_ranks(within, own, samples.mean()).mean()

    assert torch.allclose(variance, samples.var(correction=0), rtol=1e-9, atol=1e-9)


def test_variance_includes_differences_between_means_of_ranks() -> None:
    within, own = tensor(1.0, 1.2), tensor(-5.0, 4.0)

    # 1.1 within ranks, and (4.5^2 + 4.5^2) / 2 = 20.25 between ranks
    assert torch.allclose(variance_across_ranks(within, own, own.mean()).mean(), tensor(21.35))


def test_single_process_does_not_modify_the_tensors() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3), nn.LayerNorm(3))
    model(torch.randn(8, 3))
    before = {name: value.clone() for name, value in model.state_dict().items()}

    sync_tensors(model.state_dict(), Collectives())

    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_empty_mapping_is_valid() -> None:
    sync_tensors({}, Collectives())
