"""Equal and custom averages without hookbus, and the learning rates of SWA."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import SWALR, AveragedModel

from hookbus_ema import EqualAverage
from hookbus_ema.batch_norm import compute_statistics, find_batch_norms
from hookbus_ema.swa_lr import anneal


def update(average: EqualAverage, weight: Tensor, values: list[float]) -> None:
    for value in values:
        weight.data.fill_(value)
        average.update()


def test_average_is_the_mean_of_the_updates_without_the_initial_weights() -> None:
    weight = torch.full((2,), 9.0)
    average = EqualAverage({"weight": weight})
    update(average, weight, [1, 2, 6])
    assert average.averaged()["weight"].tolist() == [3, 3]
    assert average.steps == 3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_in_low_precision_have_averages_in_fp32(dtype: torch.dtype) -> None:
    weight = torch.zeros(1, dtype=dtype)
    for avg_fn in (None, lambda average, value, count: average + (value - average) / (count + 1)):
        average = EqualAverage({"weight": weight}, avg_fn)
        update(average, weight, [256.0, 256.0, 258.0])
        assert average.averaged()["weight"].dtype == torch.float32
        assert average.averaged()["weight"].item() == pytest.approx(770 / 3)


def test_function_receives_the_number_of_averaged_weights_once_per_tied_tensor() -> None:
    calls: list[tuple[float, float, int]] = []

    def record(average: Tensor, weight: Tensor, count: int) -> Tensor:
        calls.append((average.item(), weight.item(), count))
        return 10 * average + weight

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = self.b = nn.Parameter(torch.zeros(1))
            self.frozen = nn.Parameter(torch.full((1,), 7.0), requires_grad=False)
            self.register_buffer("count", torch.tensor(4))

    model = Tied()
    average = EqualAverage(model, record)
    update(average, model.a, [1, 2, 3])
    assert [call for call in calls if call[1] != 7] == [(1, 2, 1), (12, 3, 2)]
    averaged = average.averaged()
    assert (averaged["a"].item(), averaged["b"].item(), averaged["count"].item()) == (123, 123, 4)


def test_kept_statistics_replace_those_of_the_average_only() -> None:
    model = nn.BatchNorm1d(1)
    average = EqualAverage(model)
    average.update()
    with average.applied():
        assert compute_statistics(model, find_batch_norms(model), [torch.tensor([[1.0], [3.0]])], model) == 1
        average.keep([model.running_mean, model.running_var])  # type: ignore[list-item]
    assert average.averaged()["running_mean"].item() == 2
    assert (model.running_mean.item(), model.momentum) == (0, 0.1)  # type: ignore[union-attr]


def test_layers_that_are_frozen_have_no_statistics_to_compute() -> None:
    model = nn.Sequential(nn.BatchNorm1d(1), nn.BatchNorm1d(1), nn.BatchNorm1d(1, track_running_stats=False))
    model[1].eval()
    assert find_batch_norms(model) == [model[0]]
    model.eval()
    assert find_batch_norms(model) == [model[0], model[1]]


@pytest.mark.parametrize("seed", range(20))
def test_learning_rates_and_means_are_those_of_torch(seed: int) -> None:
    rng = random.Random(seed)
    initial, final, epochs = rng.uniform(0, 1), rng.uniform(0, 1), rng.randint(0, 12)
    strategy: Any = rng.choice(["cos", "linear"])
    weight = nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([weight], lr=initial)
    swa = SWALR(optimizer, final, anneal_epochs=epochs, anneal_strategy=strategy)
    module = nn.Module()
    module.weight = weight
    reference, average = AveragedModel(module), EqualAverage(module)
    for epoch in range(15):
        rate = anneal(epoch, initial=initial, final=final, annealing_epochs=epochs, strategy=strategy)
        # Without annealing, torch uses the final rate from the first step of the scheduler on.
        assert optimizer.param_groups[0]["lr"] == pytest.approx(rate) or (epochs, epoch) == (0, 0)
        weight.data.copy_(torch.tensor([rng.gauss(0, 1) for _ in range(3)]))
        reference.update_parameters(module)
        average.update()
        torch.testing.assert_close(average.averaged()["weight"], reference.module.weight.data)
        optimizer.step()
        swa.step()
