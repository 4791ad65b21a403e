"""Synchronization of torchmetrics with simulated ranks; tests/distributed uses real processes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torchmetrics import CatMetric, MeanMetric, MetricCollection
from torchmetrics.wrappers import MinMaxMetric

from hookbus._training.eval_metrics import Accuracy
from hookbus._training.metric_sync import is_torchmetric, sync_torchmetrics
from hookbus.distributed.collectives import Collectives


class FakeRanks(Collectives):
    """Ranks whose `_gather` returns the value of this rank and prepared values of the other ranks."""

    world_size = 2

    def __init__(self, *others: Any) -> None:
        self._others = others

    def _gather(self, name: str, value: Any) -> list[Any]:
        return [value, *self._others]


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        (MeanMetric(), True),
        (MetricCollection([MeanMetric()]), True),
        (MinMaxMetric(MeanMetric()), True),
        (Accuracy(), False),
        (nn.Linear(1, 1), False),
    ],
)
def test_torchmetrics_are_detected_in_wrappers_and_collections(metric: object, expected: bool) -> None:
    assert is_torchmetric(metric) is expected


def test_rank_without_batches_is_excluded() -> None:
    mean, idle = MeanMetric(), MeanMetric()
    mean.update(torch.tensor([1.0, 2.0]))
    sync_torchmetrics("mean", mean, FakeRanks([(0, idle.metric_state)]))

    assert mean.compute() == 1.5


def test_list_states_are_concatenated_and_cleared_by_a_reset() -> None:
    local, other = CatMetric(), CatMetric()
    local.update(torch.tensor([1.0]))
    other.update(torch.tensor([2.0, 3.0]))
    other.update(torch.tensor([4.0]))
    sync_torchmetrics("all", local, FakeRanks([(2, other.metric_state)]))
    assert local.compute().tolist() == [1.0, 2.0, 3.0, 4.0]

    local.reset()
    local.update(torch.tensor([5.0]))
    assert local.compute() == 5.0


def test_single_process_does_not_change_the_states() -> None:
    local = CatMetric()
    local.update(torch.tensor([1.0, 2.0]))
    sync_torchmetrics("all", local, Collectives())

    assert local.compute().tolist() == [1.0, 2.0]
