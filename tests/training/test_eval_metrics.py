"""Synchronization of torchmetrics with simulated ranks; tests/distributed uses real processes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torchmetrics
from torch import nn
from torchmetrics import CatMetric, MetricCollection
from torchmetrics.wrappers import MinMaxMetric

from hookbus._training.eval_metrics import (
    Accuracy,
    EpochMetric,
    MeanMetric,
    build_metrics,
    is_torchmetric,
    sync_torchmetrics,
)
from hookbus.data.batches import get_targets
from hookbus.distributed.collectives import Collectives
from hookbus.errors import ConfigError
from hookbus.metrics import windows


class TestAccuracy:
    def test_accuracy_is_the_fraction_of_hits_for_any_batch_size(self) -> None:
        accuracy = Accuracy()
        accuracy.update(torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]]), torch.tensor([0, 1, 1]))
        accuracy.update(torch.tensor([[0.1, 0.9]]), torch.tensor([1]))

        assert float(accuracy.compute()) == 0.75

    @pytest.mark.parametrize(
        ("outputs", "targets", "expected"),
        [
            (torch.tensor([0, 1, 1, 0]), torch.tensor([0, 1, 0, 0]), 0.75),
            (torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([[1.0, 0.0], [1.0, 0.0]]), 0.5),
            (torch.eye(2).reshape(1, 2, 2), torch.tensor([[0, 0]]), 0.5),
        ],
        ids=["classes", "one-hot", "per pixel"],
    )
    def test_accuracy_accepts_scores_classes_and_one_hot_targets(
        self, outputs: Any, targets: Any, expected: float
    ) -> None:
        accuracy = Accuracy()
        accuracy.update(outputs, targets)

        assert float(accuracy.compute()) == expected

    def test_accuracy_is_reset(self) -> None:
        accuracy = Accuracy()
        accuracy.update(torch.tensor([0]), torch.tensor([1]))
        accuracy.reset()
        assert math.isnan(accuracy.compute())

        accuracy.update(torch.tensor([1]), torch.tensor([1]))
        assert float(accuracy.compute()) == 1.0

    @pytest.mark.parametrize("metric", [Accuracy(), MeanMetric(lambda outputs, targets: (outputs * 1.0).mean())])
    def test_device_without_float64_computes_in_float32(self, monkeypatch: pytest.MonkeyPatch, metric: Any) -> None:
        monkeypatch.setattr(windows, "_get_widest_dtype", lambda device: torch.float32)
        metric.update(torch.tensor([1, 0]), torch.tensor([1, 1]))

        assert metric.compute().dtype == torch.float32
        assert metric.compute() == 0.5

    def test_accuracy_is_exact_in_float64(self) -> None:
        accuracy = Accuracy()
        hits = torch.zeros(3, dtype=torch.long)
        hits[0] = 1
        accuracy.update(hits, torch.ones(3, dtype=torch.long))

        assert float(accuracy.compute()) == 1 / 3


class TestMeanMetric:
    def test_mean_weights_batches_by_their_samples(self) -> None:
        error = MeanMetric(lambda outputs, targets: (outputs - targets).abs().mean())
        error.update(torch.tensor([1.0, 3.0]), torch.tensor([0.0, 0.0]))
        error.update(torch.tensor([8.0]), torch.tensor([0.0]))

        assert float(error.compute()) == 4.0

    def test_mean_accepts_functions_that_return_floats(self) -> None:
        half = MeanMetric(lambda outputs, targets: 0.5)
        half.update(torch.zeros(3), torch.zeros(3))

        assert half.compute() == 0.5

    def test_mean_without_samples_is_nan(self) -> None:
        assert math.isnan(MeanMetric(lambda outputs, targets: 1.0).compute())

    def test_mean_is_reset(self) -> None:
        mean = MeanMetric(lambda outputs, targets: outputs.mean())
        mean.update(torch.tensor([1.0]), torch.tensor([0.0]))
        mean.reset()
        mean.update(torch.tensor([5.0]), torch.tensor([0.0]))

        assert float(mean.compute()) == 5.0


class TestEpochMetric:
    def test_epoch_metric_receives_all_batches_at_once(self) -> None:
        span = EpochMetric(lambda outputs, targets: (outputs - targets).max() - (outputs - targets).min())
        span.update(torch.tensor([1.0, 3.0]), torch.tensor([0.0, 0.0]))
        span.update(torch.tensor([8.0]), torch.tensor([1.0]))

        assert float(span.compute()) == 6.0

    def test_epoch_metric_stores_detached_tensors(self) -> None:
        metric = EpochMetric(lambda outputs, targets: outputs.requires_grad)
        metric.update(torch.ones(1, requires_grad=True) * 2, torch.ones(1))

        assert metric.compute() is False

    def test_epoch_metric_without_samples_is_nan(self) -> None:
        assert math.isnan(EpochMetric(lambda outputs, targets: 1.0).compute())

    def test_epoch_metric_is_reset(self) -> None:
        largest = EpochMetric(lambda outputs, targets: outputs.max())
        largest.update(torch.tensor([9.0]), torch.tensor([0.0]))
        largest.reset()
        largest.update(torch.tensor([5.0]), torch.tensor([0.0]))

        assert float(largest.compute()) == 5.0


class Hits:
    """Metric object with the interface of torchmetrics."""

    def __init__(self) -> None:
        self.batches = 0

    def update(self, outputs: Any, targets: Any) -> None:
        self.batches += 1

    def compute(self) -> int:
        return self.batches

    def reset(self) -> None:
        self.batches = 0


def mean_output(outputs: Any, targets: Any) -> Any:
    return outputs.mean()


class MetricWithArgument(Hits):
    def __init__(self, classes: int) -> None:
        super().__init__()


class TestBuild:
    @pytest.mark.parametrize(
        ("metric", "name", "metric_type"),
        [
            ("accuracy", "accuracy", Accuracy),
            ("torch.nn.functional.l1_loss", "l1_loss", MeanMetric),
            ("torch.nn.functional:l1_loss", "l1_loss", MeanMetric),
            (Hits, "hits", Hits),
            (mean_output, "mean_output", MeanMetric),
            ("hookbus._training.eval_metrics.Accuracy", "Accuracy", Accuracy),
        ],
    )
    def test_names_paths_classes_and_functions_are_accepted(self, metric: Any, name: str, metric_type: type) -> None:
        metrics = build_metrics([metric])

        assert list(metrics) == [name]
        assert type(metrics[name]) is metric_type

    def test_functions_receive_all_outputs_at_once_without_streaming(self) -> None:
        metrics = ["accuracy", mean_output, "torch.nn.functional.l1_loss", Hits]
        types = {name: type(metric) for name, metric in build_metrics(metrics, streaming=False).items()}

        assert types == {"accuracy": Accuracy, "mean_output": EpochMetric, "l1_loss": EpochMetric, "hits": Hits}

    def test_object_is_used_without_a_copy(self) -> None:
        hits = Hits()

        assert build_metrics([hits]) == {"hits": hits}

    def test_mapping_defines_the_names(self) -> None:
        metrics = build_metrics({"first": "accuracy", "second": mean_output, "third": lambda outputs, targets: 0.0})

        assert {name: type(metric) for name, metric in metrics.items()} == {
            "first": Accuracy,
            "second": MeanMetric,
            "third": MeanMetric,
        }

    def test_built_in_name_builds_a_new_object_each_time(self) -> None:
        metrics = build_metrics({"a": "accuracy", "b": "accuracy"})

        assert metrics["a"] is not metrics["b"]

    @pytest.mark.parametrize(
        ("metrics", "message"),
        [
            (
                ["acuracy"],
                "metrics: expected a built-in metric or an import string, got 'acuracy'. Did you mean 'accuracy'?",
            ),
            (["torch.nn.functional.l7_loss"], "metrics: 'torch.nn.functional.l7_loss' cannot be imported: "),
            (["no_such_module.thing"], "metrics: 'no_such_module.thing' cannot be imported: "),
            ([MetricWithArgument], "metrics: MetricWithArgument cannot be built: TypeError: "),
            (["accuracy", "accuracy"], "metrics: two metrics are named 'accuracy'. Use a mapping"),
            ([3], "metrics: expected a name, a function or an object with update, compute and reset, got 3."),
            (
                ["accuracy", Accuracy()],
                "metrics: two metrics are named 'accuracy'. Use a mapping with unique names.",
            ),
        ],
    )
    def test_invalid_metric_is_an_error(self, metrics: Any, message: str) -> None:
        with pytest.raises(ConfigError) as caught:
            build_metrics(metrics)

        assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("batch", "targets"),
    [
        (("inputs", "mask", "y"), "y"),
        (["inputs", "y"], "y"),
        ({"image": 1, "labels": "y"}, "y"),
        ({"image": 1, "target": "y", "label": "z"}, "y"),
        ({"image": 1}, None),
        (("inputs",), None),
        ("inputs", None),
    ],
)
def test_targets_are_the_last_element_or_under_a_common_key(batch: Any, targets: Any) -> None:
    assert get_targets(batch) == targets


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
        (torchmetrics.MeanMetric(), True),
        (MetricCollection([torchmetrics.MeanMetric()]), True),
        (MinMaxMetric(torchmetrics.MeanMetric()), True),
        (Accuracy(), False),
        (nn.Linear(1, 1), False),
    ],
)
def test_torchmetrics_are_detected_in_wrappers_and_collections(metric: object, expected: bool) -> None:
    assert is_torchmetric(metric) is expected


def test_rank_without_batches_is_excluded() -> None:
    mean, idle = torchmetrics.MeanMetric(), torchmetrics.MeanMetric()
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
