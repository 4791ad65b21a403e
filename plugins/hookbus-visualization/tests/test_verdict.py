import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hookbus_visualization.panel import RIGHT, WRONG
from hookbus_visualization.verdict import Verdict, class_of, judged, probabilities

from .toys import render_settings

NAMES = ("cat", "dog", "cow")
SCORES = np.log([0.1, 0.7, 0.2])
"""Scores of three classes; the second one has the highest probability."""


class TestClasses:
    @pytest.mark.parametrize("scores", [SCORES, SCORES + 100, np.array([0.1, 0.7, 0.2]), torch.tensor([0.1, 0.7, 0.2])])
    def test_classes_have_names_and_a_probability(self, scores):
        assert judged(1, scores, NAMES) == Verdict("true dog\npredicted dog (70%), right", True)
        assert judged(2, scores, NAMES) == Verdict("true cow\npredicted dog (70%), wrong", False)

    def test_classes_without_a_name_have_an_index(self):
        assert judged(5, SCORES, NAMES).text == "true 5\npredicted dog (70%), wrong"
        assert judged(0, SCORES).text == "true 0\npredicted 1 (70%), wrong"

    def test_prediction_may_be_a_class_index(self):
        assert judged(2, torch.tensor(2), NAMES) == Verdict("true cow\npredicted cow, right", True)

    def test_target_may_be_class_probabilities(self):
        assert judged(np.array([0.1, 0.0, 0.9]), SCORES, NAMES) == Verdict(
            "true cow\npredicted dog (70%), wrong", False
        )

    @pytest.mark.parametrize("target", [None, -100])
    def test_prediction_with_unknown_target_is_not_evaluated(self, target):
        assert judged(target, SCORES, NAMES) == Verdict("predicted dog (70%)", None)

    def test_target_without_prediction_is_shown(self):
        assert judged(2, None, NAMES) == Verdict("true cow", None)

    def test_non_finite_prediction_is_wrong(self):
        assert judged(1, [np.nan, 1.0, 2.0], NAMES) == Verdict("true dog\nthe prediction is not finite", False)
        assert judged(None, [np.nan, 1.0], NAMES) == Verdict("the prediction is not finite", None)


class TestNumbers:
    def test_numbers_are_compared(self):
        assert judged(1.5, 1.25) == Verdict("true 1.5\npredicted 1.25, off by 0.25")
        assert judged(1, np.array([0.25])) == Verdict("true 1\npredicted 0.25, off by 0.75")

    def test_long_vectors_are_truncated(self):
        assert judged([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 9.0]) == Verdict(
            "true 1, 2, 3, …\npredicted 1, 2, 3, …, off by 5"
        )

    def test_unknown_numbers_are_omitted(self):
        assert judged(None, 0.5) == Verdict("predicted 0.5")
        assert judged(0.5, None) == Verdict("true 0.5")
        assert judged(None, None) == Verdict("")

    def test_vectors_of_different_lengths_are_not_compared(self):
        assert judged([1.0, 2.5], [1.0, 2.0, 3.0]).text == "true 1, 2.5\npredicted 1, 2, 3"


@pytest.mark.parametrize(
    ("target", "number"), [(3, 3), (torch.tensor(3), 3), (True, 1), (-1, None), (0.5, None), ([0.0, 1.0], 1)]
)
def test_target_is_converted_to_a_class_index(target, number):
    assert class_of(target) == number


@render_settings
@given(arrays(np.float32, st.integers(2, 5), elements=st.floats(-(2.0**99), 2.0**99, width=32)))
def test_probabilities_sum_to_one(scores):
    result = probabilities(scores)
    assert np.isclose(result.sum(), 1, atol=1e-3)
    assert result[scores.argmax()] == result.max()


def test_frame_color_distinguishes_correct_from_incorrect():
    assert [Verdict("", right).frame for right in (True, False, None)] == [RIGHT, WRONG, None]
