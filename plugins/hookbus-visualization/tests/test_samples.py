from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hookbus_visualization.samples import (
    Samples,
    describe_shapes,
    extract_predictions,
    extract_samples,
    get_first,
    sort_by_score,
    split_samples,
    take_first,
)

X, Y, P = torch.arange(12.0).reshape(4, 3), torch.arange(4), torch.ones(4, 2, requires_grad=True)


class TestSeenIn:
    def test_pair_contains_inputs_and_targets(self):
        for batch in ((X, Y), [X, Y]):
            samples = extract_samples(batch, {"loss": torch.tensor(1.0), "output": P})
            assert (samples.inputs is X, samples.images is X, samples.targets is Y, samples.predictions is P) == (
                True,
            ) * 4

    def test_first_of_multiple_inputs_is_displayed(self):
        samples = extract_samples((X, P, Y), P)
        assert samples.inputs[0] is X
        assert samples.inputs[1] is P
        assert (samples.images is X, samples.targets is Y, samples.predictions is P) == (True,) * 3

    def test_values_of_a_mapping_are_found_by_usual_keys(self):
        samples = extract_samples({"pixel_values": X, "labels": Y, "mask": P}, {"logits": P})
        assert list(samples.inputs) == ["pixel_values", "labels", "mask"]
        assert (samples.images is X, samples.targets is Y, samples.predictions is P) == (True,) * 3

    def test_inputs_without_targets_have_no_targets(self):
        for batch in (X, (X,)):
            samples = extract_samples(batch, None)
            assert (samples.inputs is X, samples.images is X, samples.targets, samples.predictions) == (
                True,
                True,
                None,
                None,
            )

    def test_images_of_different_sizes_are_one_input(self):
        samples = extract_samples(((X, X[:2]), ({"boxes": 1}, {"boxes": 2})), {})
        assert [len(image) for image in samples.inputs] == [4, 2]
        assert samples.inputs == samples.images
        assert samples.targets == ({"boxes": 1}, {"boxes": 2})


class TestPredictionsIn:
    def test_losses_are_not_predictions(self):
        assert extract_predictions({"loss": torch.tensor(1.0), "loss_box": 0.5}) is None
        assert extract_predictions({}) is None

    def test_mapping_without_usual_keys_is_the_prediction_without_its_losses(self):
        assert extract_predictions({"loss": torch.tensor(1.0), "pred_boxes": P}) == {"pred_boxes": P}


class TestFirst:
    def test_first_samples_are_detached(self):
        assert not take_first(P, 2).requires_grad
        assert take_first(X, 2).tolist() == X[:2].tolist()
        assert take_first(np.arange(5), 2).tolist() == [0, 1]
        assert take_first(("a", "b", "c"), 2) == ["a", "b"]
        assert {key: len(value) for key, value in take_first({"x": X, "y": [1, 2, 3]}, 2).items()} == {"x": 2, "y": 2}

    def test_values_without_samples_are_unchanged(self):
        assert take_first(None, 2) is None
        assert take_first("text", 2) == "text"
        assert take_first(torch.tensor(3), 2).item() == 3

    def test_every_part_is_truncated(self):
        samples = Samples(inputs=(X, P), images=X, targets=Y, predictions={"a": P}).take_first(3)
        assert [len(part) for part in (*samples.inputs, samples.images, samples.targets, samples.predictions["a"])] == [
            3
        ] * 5


def test_shapes_are_formatted_for_nested_values():
    batch = (torch.zeros(4, 3), {"labels": np.zeros(2), "name": "x"}, [1, 2, 3, 4])
    assert describe_shapes(batch) == (
        "(Tensor of shape (4, 3), {labels: ndarray of shape (2,), name: str}, (int, int, int, and 1 more))"
    )


class TestFirstOf:
    def test_items_and_attributes_are_found(self):
        assert get_first({"b": 1, "c": 2}, ("a", "b", "c")) == 1
        assert get_first(SimpleNamespace(b=1, c=2), ("a", "b", "c")) == 1

    def test_none_is_skipped(self):
        assert get_first({"a": None, "b": 0}, ("a", "b")) == 0

    def test_missing_names_return_none(self):
        assert get_first({"d": 1}, ("a", "b")) is None
        assert get_first([1, 2], ("a", "b")) is None


class TestPerSample:
    @pytest.mark.parametrize("value", [[5, 6], (5, 6), np.array([5, 6]), torch.tensor([5, 6])])
    def test_sequences_are_split_into_items(self, value):
        assert [int(item) for item in split_samples(value, 2)] == [5, 6]

    def test_mappings_are_split_into_mappings_of_items(self):
        value = {
            "boxes": torch.zeros(2, 3, 4),
            "labels": [[1], [2]],
            "step": 7,
            "classes": [1, 2, 3],
            "loss": np.ones(()),
        }
        first, second = split_samples(value, 2)
        assert first.keys() == second.keys() == {"boxes", "labels"}
        assert second["boxes"].shape == (3, 4)
        assert (first["labels"], second["labels"]) == ([1], [2])

    def test_none_is_repeated_for_each_sample(self):
        assert split_samples(None, 2) == [None, None]

    @pytest.mark.parametrize(
        ("value", "why"),
        [
            ([1], "one value is required for each of 2 images, got 1"),
            (torch.zeros(3, 2), "one value is required for each of 2 images, got 3"),
            (torch.zeros(()), "one value is required for each of 2 images, got none"),
            (5, "one value is required for each of 2 images, got none"),
            ({"boxes": [1, 2, 3], "labels": []}, "for each of 2 images, got a mapping with the keys boxes, labels"),
            ({}, "for each of 2 images, got an empty mapping"),
        ],
    )
    def test_other_lengths_raise_value_error(self, value, why):
        with pytest.raises(ValueError, match=why):
            split_samples(value, 2)


class TestSurest:
    def test_indices_above_the_threshold_are_sorted_by_score(self):
        assert sort_by_score(np.array([0.9, 0.29, 0.3, 0.5]), 0.3).tolist() == [2, 3, 0]

    def test_nan_passes_the_threshold(self):
        assert sort_by_score(np.array([float("nan"), 0.5, 1.0]), 0.6).tolist() == [2, 0]

    def test_equal_scores_keep_their_order(self):
        assert sort_by_score(np.array([0.5, 0.7, 0.5, 0.7]), 0.0).tolist() == [0, 2, 1, 3]
