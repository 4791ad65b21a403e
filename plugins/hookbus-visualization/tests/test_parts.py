from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hookbus_visualization.parts import first_of, per_sample, surest


class TestTheFirstOfSomeNames:
    def test_is_an_item_or_an_attribute(self):
        assert first_of({"b": 1, "c": 2}, ("a", "b", "c")) == 1
        assert first_of(SimpleNamespace(b=1, c=2), ("a", "b", "c")) == 1

    def test_passes_over_none(self):
        assert first_of({"a": None, "b": 0}, ("a", "b")) == 0

    def test_is_none_where_there_is_none(self):
        assert first_of({"d": 1}, ("a", "b")) is None
        assert first_of([1, 2], ("a", "b")) is None


class TestWhatThereIsForEachSample:
    @pytest.mark.parametrize("value", [[5, 6], (5, 6), np.array([5, 6]), torch.tensor([5, 6])])
    def test_is_an_element(self, value):
        assert [int(each) for each in per_sample(value, 2)] == [5, 6]

    def test_is_a_mapping_of_elements(self):
        value = {
            "boxes": torch.zeros(2, 3, 4),
            "labels": [[1], [2]],
            "step": 7,
            "classes": [1, 2, 3],
            "loss": np.ones(()),
        }
        first, second = per_sample(value, 2)
        assert first.keys() == second.keys() == {"boxes", "labels"}
        assert second["boxes"].shape == (3, 4)
        assert (first["labels"], second["labels"]) == ([1], [2])

    def test_is_none_where_nothing_is_there(self):
        assert per_sample(None, 2) == [None, None]

    @pytest.mark.parametrize(
        ("value", "why"),
        [
            ([1], "there are 1 for 2 images"),
            (torch.zeros(3, 2), "there are 3 for 2 images"),
            (torch.zeros(()), "there are none for 2 images"),
            (5, "there are none for 2 images"),
            ({"boxes": [1, 2, 3], "labels": []}, "none of boxes, labels has one for each of 2 images"),
            ({}, "an empty mapping has nothing for 2 images"),
        ],
    )
    def test_is_refused_in_another_number(self, value, why):
        with pytest.raises(ValueError, match=why):
            per_sample(value, 2)


class TestTheSurest:
    def test_are_not_below_the_threshold_and_in_order(self):
        assert surest(np.array([0.9, 0.29, 0.3, 0.5]), 0.3).tolist() == [2, 3, 0]

    def test_do_not_hide_nan(self):
        assert surest(np.array([float("nan"), 0.5, 1.0]), 0.6).tolist() == [2, 0]

    def test_keep_their_order_where_they_are_equal(self):
        assert surest(np.array([0.5, 0.7, 0.5, 0.7]), 0.0).tolist() == [0, 2, 1, 3]
