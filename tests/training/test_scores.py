from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from hookbus.errors import ConfigError
from hookbus.training.scores import Accuracy, MeanOf, OverAll, scores_from, targets_in


class TestAccuracy:
    def test_counts_hits_over_batches_of_any_size(self) -> None:
        accuracy = Accuracy()
        accuracy.update(torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]]), torch.tensor([0, 1, 1]))
        accuracy.update(torch.tensor([[0.1, 0.9]]), torch.tensor([1]))

        assert float(accuracy.compute()) == 0.75

    @pytest.mark.parametrize(
        ("outputs", "targets", "share"),
        [
            (torch.tensor([0, 1, 1, 0]), torch.tensor([0, 1, 0, 0]), 0.75),
            (torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([[1.0, 0.0], [1.0, 0.0]]), 0.5),
            (torch.eye(2).reshape(1, 2, 2), torch.tensor([[0, 0]]), 0.5),
        ],
        ids=["classes", "one-hot", "per pixel"],
    )
    def test_takes_scores_classes_and_one_hot_targets(self, outputs: Any, targets: Any, share: float) -> None:
        accuracy = Accuracy()
        accuracy.update(outputs, targets)

        assert float(accuracy.compute()) == share

    def test_begins_again_after_a_reset(self) -> None:
        accuracy = Accuracy()
        accuracy.update(torch.tensor([0]), torch.tensor([1]))
        accuracy.reset()
        assert math.isnan(accuracy.compute())

        accuracy.update(torch.tensor([1]), torch.tensor([1]))
        assert float(accuracy.compute()) == 1.0

    def test_is_exact_where_a_float32_mean_would_not_be(self) -> None:
        accuracy = Accuracy()
        hits = torch.zeros(3, dtype=torch.long)
        hits[0] = 1
        accuracy.update(hits, torch.ones(3, dtype=torch.long))

        assert float(accuracy.compute()) == 1 / 3


class TestMeanOf:
    def test_weighs_batches_by_their_samples(self) -> None:
        error = MeanOf(lambda outputs, targets: (outputs - targets).abs().mean())
        error.update(torch.tensor([1.0, 3.0]), torch.tensor([0.0, 0.0]))
        error.update(torch.tensor([8.0]), torch.tensor([0.0]))

        assert float(error.compute()) == 4.0

    def test_takes_functions_that_return_plain_numbers(self) -> None:
        half = MeanOf(lambda outputs, targets: 0.5)
        half.update(torch.zeros(3), torch.zeros(3))

        assert half.compute() == 0.5

    def test_without_a_sample_it_is_nan(self) -> None:
        assert math.isnan(MeanOf(lambda outputs, targets: 1.0).compute())

    def test_begins_again_after_a_reset(self) -> None:
        mean = MeanOf(lambda outputs, targets: outputs.mean())
        mean.update(torch.tensor([1.0]), torch.tensor([0.0]))
        mean.reset()
        mean.update(torch.tensor([5.0]), torch.tensor([0.0]))

        assert float(mean.compute()) == 5.0


class TestOverAll:
    def test_sees_all_batches_at_once(self) -> None:
        span = OverAll(lambda outputs, targets: (outputs - targets).max() - (outputs - targets).min())
        span.update(torch.tensor([1.0, 3.0]), torch.tensor([0.0, 0.0]))
        span.update(torch.tensor([8.0]), torch.tensor([1.0]))

        assert float(span.compute()) == 6.0

    def test_keeps_no_graph(self) -> None:
        kept = OverAll(lambda outputs, targets: outputs.requires_grad)
        kept.update(torch.ones(1, requires_grad=True) * 2, torch.ones(1))

        assert kept.compute() is False

    def test_without_a_sample_it_is_nan(self) -> None:
        assert math.isnan(OverAll(lambda outputs, targets: 1.0).compute())

    def test_begins_again_after_a_reset(self) -> None:
        largest = OverAll(lambda outputs, targets: outputs.max())
        largest.update(torch.tensor([9.0]), torch.tensor([0.0]))
        largest.reset()
        largest.update(torch.tensor([5.0]), torch.tensor([0.0]))

        assert float(largest.compute()) == 5.0


class Hits:
    """An object in the manner of torchmetrics."""

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


class Choosy(Hits):
    def __init__(self, classes: int) -> None:
        super().__init__()


class TestWhatUsersGive:
    @pytest.mark.parametrize(
        ("given", "name", "kind"),
        [
            ("accuracy", "accuracy", Accuracy),
            ("torch.nn.functional.l1_loss", "l1_loss", MeanOf),
            ("torch.nn.functional:l1_loss", "l1_loss", MeanOf),
            (Hits, "hits", Hits),
            (mean_output, "mean_output", MeanOf),
            ("hookbus.training.scores.Accuracy", "Accuracy", Accuracy),
        ],
    )
    def test_names_paths_classes_and_functions_become_scores(self, given: Any, name: str, kind: type) -> None:
        scores = scores_from([given])

        assert list(scores) == [name]
        assert type(scores[name]) is kind

    def test_functions_and_only_they_see_all_at_once_where_that_is_wanted(self) -> None:
        given = ["accuracy", mean_output, "torch.nn.functional.l1_loss", Hits]
        kinds = {name: type(score) for name, score in scores_from(given, streaming=False).items()}

        assert kinds == {"accuracy": Accuracy, "mean_output": OverAll, "l1_loss": OverAll, "hits": Hits}

    def test_an_object_is_taken_as_it_is(self) -> None:
        hits = Hits()

        assert scores_from([hits]) == {"hits": hits}

    def test_a_mapping_gives_names_of_ones_own(self) -> None:
        scores = scores_from({"first": "accuracy", "second": mean_output, "third": lambda outputs, targets: 0.0})

        assert {name: type(score) for name, score in scores.items()} == {
            "first": Accuracy,
            "second": MeanOf,
            "third": MeanOf,
        }

    def test_each_use_of_a_built_in_name_is_an_object_of_its_own(self) -> None:
        scores = scores_from({"a": "accuracy", "b": "accuracy"})

        assert scores["a"] is not scores["b"]

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            (["acuracy"], "metrics: there is no built-in metric 'acuracy'. Did you mean 'accuracy'?"),
            (["torch.nn.functional.l7_loss"], "metrics: 'torch.nn.functional.l7_loss' cannot be imported: "),
            (["no_such_module.thing"], "metrics: 'no_such_module.thing' cannot be imported: "),
            ([Choosy], "metrics: Choosy cannot be built: TypeError: "),
            (["accuracy", "accuracy"], "metrics: two of them are called 'accuracy': give a mapping"),
            ([3], "metrics: 3 is neither a name, a function nor an object with update and compute."),
            (
                ["accuracy", Accuracy()],
                "metrics: two of them are called 'accuracy': give a mapping with names of your own.",
            ),
        ],
    )
    def test_anything_else_is_refused(self, given: Any, message: str) -> None:
        with pytest.raises(ConfigError) as caught:
            scores_from(given)

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
def test_targets_are_the_last_of_a_tuple_or_under_a_usual_key(batch: Any, targets: Any) -> None:
    assert targets_in(batch) == targets
