import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hookbus_visualization.panel import RIGHT, WRONG
from hookbus_visualization.verdict import Verdict, class_of, judged, probabilities

from .toys import drawing

NAMES = ("cat", "dog", "cow")
SURE = np.log([0.1, 0.7, 0.2])
"""Scores of three classes, the second of which is the most probable."""


class TestClasses:
    @pytest.mark.parametrize("scores", [SURE, SURE + 100, np.array([0.1, 0.7, 0.2]), torch.tensor([0.1, 0.7, 0.2])])
    def test_have_names_and_a_probability(self, scores):
        assert judged(1, scores, NAMES) == Verdict("true dog\npredicted dog (70%), right", True)
        assert judged(2, scores, NAMES) == Verdict("true cow\npredicted dog (70%), wrong", False)

    def test_without_a_name_have_a_number(self):
        assert judged(5, SURE, NAMES).text == "true 5\npredicted dog (70%), wrong"
        assert judged(0, SURE).text == "true 0\npredicted 1 (70%), wrong"

    def test_may_be_given_as_their_number_alone(self):
        assert judged(2, torch.tensor(2), NAMES) == Verdict("true cow\npredicted cow, right", True)

    def test_may_be_given_as_probabilities_of_all(self):
        assert judged(np.array([0.1, 0.0, 0.9]), SURE, NAMES) == Verdict("true cow\npredicted dog (70%), wrong", False)

    @pytest.mark.parametrize("target", [None, -100])
    def test_that_are_not_known_are_not_judged(self, target):
        assert judged(target, SURE, NAMES) == Verdict("predicted dog (70%)", None)

    def test_are_shown_alone_where_nothing_was_predicted(self):
        assert judged(2, None, NAMES) == Verdict("true cow", None)

    def test_that_are_not_finite_are_wrong(self):
        assert judged(1, [np.nan, 1.0, 2.0], NAMES) == Verdict("true dog\nthe prediction is not finite", False)
        assert judged(None, [np.nan, 1.0], NAMES) == Verdict("the prediction is not finite", None)


class TestNumbers:
    def test_are_compared(self):
        assert judged(1.5, 1.25) == Verdict("true 1.5\npredicted 1.25, off by 0.25")
        assert judged(1, np.array([0.25])) == Verdict("true 1\npredicted 0.25, off by 0.75")

    def test_of_a_vector_are_the_first_few(self):
        assert judged([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 9.0]) == Verdict(
            "true 1, 2, 3, …\npredicted 1, 2, 3, …, off by 5"
        )

    def test_that_are_not_known_are_left_out(self):
        assert judged(None, 0.5) == Verdict("predicted 0.5")
        assert judged(0.5, None) == Verdict("true 0.5")
        assert judged(None, None) == Verdict("")

    def test_of_another_count_are_not_compared(self):
        assert judged([1.0, 2.5], [1.0, 2.0, 3.0]).text == "true 1, 2.5\npredicted 1, 2, 3"


@pytest.mark.parametrize(
    ("target", "number"), [(3, 3), (torch.tensor(3), 3), (True, 1), (-1, None), (0.5, None), ([0.0, 1.0], 1)]
)
def test_a_target_stands_for_a_class(target, number):
    assert class_of(target) == number


@drawing
@given(arrays(np.float32, st.integers(2, 5), elements=st.floats(-(2.0**99), 2.0**99, width=32)))
def test_probabilities_sum_to_one(scores):
    found = probabilities(scores)
    assert np.isclose(found.sum(), 1, atol=1e-3)
    assert found[scores.argmax()] == found.max()


def test_a_frame_tells_right_from_wrong():
    assert [Verdict("", each).frame for each in (True, False, None)] == [RIGHT, WRONG, None]
