"""Tests of the values that are logged during a validation or test."""

from __future__ import annotations

import gc
import math
import weakref

import numpy as np
import pytest
import torch

from hookbus.distributed.collectives import Collectives
from hookbus.errors import MetricError
from hookbus.metrics.logged import EvaluationMeans


class TestEvaluation:
    def test_means_are_weighted_by_the_number_of_samples(self) -> None:
        evaluation = EvaluationMeans()
        for size, loss in [(4, 1.0), (4, torch.tensor(3.0)), (1, np.float32(11.0))]:
            evaluation.weight = size
            evaluation.add("loss", loss)

        assert evaluation.results(Collectives()) == {"loss": (4 * 1 + 4 * 3 + 1 * 11) / 9}

    def test_explicit_weight_takes_precedence(self) -> None:
        evaluation = EvaluationMeans()
        evaluation.add("loss", 1.0, weight=3)
        evaluation.add("loss", 5.0, weight=1)

        assert evaluation.results(Collectives()) == {"loss": 2.0}

    def test_weight_of_a_name_is_that_of_the_batches_that_logged_it(self) -> None:
        evaluation = EvaluationMeans()
        evaluation.weight = 2
        evaluation.add("a", 1.0)
        evaluation.weight = 6
        evaluation.add("a", 5.0)
        evaluation.add("b", 7.0)

        assert evaluation.results(Collectives()) == {"a": 4.0, "b": 7.0}

    def test_name_has_one_value_per_batch(self) -> None:
        evaluation = EvaluationMeans()
        for value in (1.0, 3.0):
            evaluation.begin_batch(2)
            evaluation.add("a", value)

        with pytest.raises(MetricError, match="the batch already has a value of 'val/a', got a second one"):
            evaluation.add("a", 5.0)
        assert evaluation.results(Collectives()) == {"a": 2.0}

    def test_mean_without_samples_is_nan(self) -> None:
        evaluation = EvaluationMeans()
        evaluation.add("a", 1.0, weight=0)

        assert math.isnan(evaluation.results(Collectives())["a"])

    def test_single_numbers_of_any_shape_and_type_are_averaged(self) -> None:
        evaluation = EvaluationMeans()
        for value in (
            torch.tensor([1.0]),
            torch.tensor(2.0, dtype=torch.bfloat16),
            torch.tensor([[3]]),
            np.array([2.0]),
        ):
            evaluation.add("a", value)
        evaluation.add("b", True)

        assert evaluation.results(Collectives()) == {"a": 2.0, "b": 1.0}

    def test_later_changes_of_a_tensor_have_no_effect(self) -> None:
        evaluation = EvaluationMeans()
        value = torch.tensor(1.0, dtype=torch.float64)
        evaluation.add("a", value)
        value.fill_(3.0)
        evaluation.add("a", value)

        assert evaluation.results(Collectives()) == {"a": 2.0}

    def test_graph_is_released(self) -> None:
        evaluation = EvaluationMeans()
        activation = torch.ones(3, requires_grad=True) * 2
        reference = weakref.ref(activation)
        evaluation.add("a", (activation * activation).sum())
        del activation
        gc.collect()

        assert reference() is None
        assert evaluation.results(Collectives()) == {"a": 12.0}
