from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hookbus_visualization.samples import get_first, sort_by_score, split_samples


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
