import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hookbus_visualization.classification import ClassificationResult, compare_classes, get_class, to_probabilities
from hookbus_visualization.panel import CORRECT_COLOR, INCORRECT_COLOR

from .toys import render_settings

NAMES = ("cat", "dog", "cow")
SCORES = np.log([0.1, 0.7, 0.2])
"""Scores of three classes; the second one has the highest probability."""


class TestClasses:
    @pytest.mark.parametrize("scores", [SCORES, SCORES + 100, np.array([0.1, 0.7, 0.2]), torch.tensor([0.1, 0.7, 0.2])])
    def test_classes_have_names_and_a_probability(self, scores):
        assert compare_classes(1, scores, NAMES) == ClassificationResult("true dog\npredicted dog (70%), right", True)
        assert compare_classes(2, scores, NAMES) == ClassificationResult("true cow\npredicted dog (70%), wrong", False)

    def test_classes_without_a_name_have_an_index(self):
        assert compare_classes(5, SCORES, NAMES).text == "true 5\npredicted dog (70%), wrong"
        assert compare_classes(0, SCORES).text == "true 0\npredicted 1 (70%), wrong"

    def test_prediction_may_be_a_class_index(self):
        assert compare_classes(2, torch.tensor(2), NAMES) == ClassificationResult(
            "true cow\npredicted cow, right", True
        )

    def test_target_may_be_class_probabilities(self):
        assert compare_classes(np.array([0.1, 0.0, 0.9]), SCORES, NAMES) == ClassificationResult(
            "true cow\npredicted dog (70%), wrong", False
        )

    @pytest.mark.parametrize("target", [None, -100])
    def test_prediction_with_unknown_target_is_not_evaluated(self, target):
        assert compare_classes(target, SCORES, NAMES) == ClassificationResult("predicted dog (70%)", None)

    def test_target_without_prediction_is_shown(self):
        assert compare_classes(2, None, NAMES) == ClassificationResult("true cow", None)

    def test_non_finite_prediction_is_wrong(self):
        assert compare_classes(1, [np.nan, 1.0, 2.0], NAMES) == ClassificationResult(
            "true dog\nthe prediction is not finite", False
        )
        assert compare_classes(None, [np.nan, 1.0], NAMES) == ClassificationResult("the prediction is not finite", None)


class TestNumbers:
    def test_numbers_are_compared(self):
        assert compare_classes(1.5, 1.25) == ClassificationResult("true 1.5\npredicted 1.25, off by 0.25")
        assert compare_classes(1, np.array([0.25])) == ClassificationResult("true 1\npredicted 0.25, off by 0.75")

    def test_long_vectors_are_truncated(self):
        assert compare_classes([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 9.0]) == ClassificationResult(
            "true 1, 2, 3, …\npredicted 1, 2, 3, …, off by 5"
        )

    def test_unknown_numbers_are_omitted(self):
        assert compare_classes(None, 0.5) == ClassificationResult("predicted 0.5")
        assert compare_classes(0.5, None) == ClassificationResult("true 0.5")
        assert compare_classes(None, None) == ClassificationResult("")

    def test_vectors_of_different_lengths_are_not_compared(self):
        assert compare_classes([1.0, 2.5], [1.0, 2.0, 3.0]).text == "true 1, 2.5\npredicted 1, 2, 3"


@pytest.mark.parametrize(
    ("target", "number"), [(3, 3), (torch.tensor(3), 3), (True, 1), (-1, None), (0.5, None), ([0.0, 1.0], 1)]
)
def test_target_is_converted_to_a_class_index(target, number):
    assert get_class(target) == number


@pytest.mark.slow
@render_settings
@given(arrays(np.float32, st.integers(2, 5), elements=st.floats(-(2.0**99), 2.0**99, width=32)))
def test_probabilities_sum_to_one(scores):
    result = to_probabilities(scores)
    assert np.isclose(result.sum(), 1, atol=1e-3)
    assert result[scores.argmax()] == result.max()


def test_frame_color_distinguishes_correct_from_incorrect():
    assert [ClassificationResult("", right).frame for right in (True, False, None)] == [
        CORRECT_COLOR,
        INCORRECT_COLOR,
        None,
    ]
