"""States of one process; those of several are in tests/distributed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torchmetrics import CatMetric, MeanMetric, MetricCollection
from torchmetrics.wrappers import MinMaxMetric

from hookbus.ranks import Ranks
from hookbus.training.metric_states import combine_states, has_states
from hookbus.training.scores import Accuracy


class Told(Ranks):
    """Processes of which the others have said what this one would: a gather gives what it gave and what they hold."""

    world_size = 2

    def __init__(self, *others: Any) -> None:
        self._others = others

    def _gather(self, name: str, value: Any) -> list[Any]:
        return [value, *self._others]


@pytest.mark.parametrize(
    ("score", "expected"),
    [
        (MeanMetric(), True),
        (MetricCollection([MeanMetric()]), True),
        (MinMaxMetric(MeanMetric()), True),
        (Accuracy(), False),
        (nn.Linear(1, 1), False),
    ],
)
def test_what_has_states_is_known_by_what_is_in_it(score: object, expected: bool) -> None:
    assert has_states(score) is expected


def test_a_process_that_has_judged_nothing_is_left_out() -> None:
    mean, idle = MeanMetric(), MeanMetric()
    mean.update(torch.tensor([1.0, 2.0]))
    combine_states("mean", mean, Told([(0, idle.metric_state)]))

    assert mean.compute() == 1.5


def test_lists_are_joined_and_the_metric_begins_again_after_a_reset() -> None:
    own, other = CatMetric(), CatMetric()
    own.update(torch.tensor([1.0]))
    other.update(torch.tensor([2.0, 3.0]))
    other.update(torch.tensor([4.0]))
    combine_states("all", own, Told([(2, other.metric_state)]))
    assert own.compute().tolist() == [1.0, 2.0, 3.0, 4.0]

    own.reset()
    own.update(torch.tensor([5.0]))
    assert own.compute() == 5.0


def test_with_one_process_nothing_changes() -> None:
    own = CatMetric()
    own.update(torch.tensor([1.0, 2.0]))
    combine_states("all", own, Ranks())

    assert own.compute().tolist() == [1.0, 2.0]
