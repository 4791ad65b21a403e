import math

import pytest

from hookbus_gradient_flow.flow import Gradient
from hookbus_gradient_flow.health import Complaints, ailing, sentence


def gradient(name, largest, l2=1.0):
    return Gradient(name, mean=largest / 2, max=largest, l2=l2)


@pytest.mark.parametrize(
    ("largest", "l2", "kind"),
    [
        (math.nan, math.nan, "not finite"),
        (math.inf, math.inf, "not finite"),
        (0.0, 0.0, "vanishing"),
        (9e-9, 1e-8, "vanishing"),
        (1e-8, 1e-8, None),
        (999.0, 1000.0, None),
        (10.0, 1000.1, "exploding"),
    ],
)
def test_a_gradient_is_judged_by_its_largest_value_and_its_norm(largest, l2, kind):
    found = ailing([gradient("w", largest, l2)], [])
    assert list(found) == ([kind] if kind else [])


def test_each_kind_has_its_parameters():
    found = ailing([gradient("a", 0.0, 0.0), gradient("b", 1.0), gradient("c", 5.0, 2e3)], ["d"])
    assert {kind: list(norms) for kind, norms in found.items()} == {
        "missing": ["d"],
        "vanishing": ["a"],
        "exploding": ["c"],
    }


def test_the_sentence_says_how_many_which_and_what_to_do():
    assert sentence("exploding", {"head.weight": 12345.0}, 300) == (
        "step 300: 1 parameter has a gradient that is exploding: head.weight (1.2e+04). Its norm is above 1000: "
        "clip it (clip_grad_norm), or lower the learning rate."
    )


def test_of_many_the_first_are_named():
    text = sentence("missing", {f"w{i}": math.nan for i in range(8)}, 1)
    assert text.startswith("step 1: 8 parameters have no gradient: w0, w1, w2, w3, w4 and 3 more. ")


class TestComplaints:
    def test_are_made_again_only_after_all_was_well_in_between(self):
        complaints, bad, good = Complaints(), [gradient("w", 5.0, 2e3)], [gradient("w", 5.0)]
        said = [len(complaints.about(each, [], step)) for step, each in enumerate([bad, bad, good, bad])]
        assert said == [1, 0, 0, 1]

    def test_name_what_is_new_alone(self):
        complaints = Complaints()
        complaints.about([], ["a"], 1)
        assert [text.partition(". ")[0] for text in complaints.about([], ["a", "b"], 2)] == [
            "step 2: 1 parameter has no gradient: b"
        ]

    def test_are_made_once_where_there_is_nothing_to_look_at(self):
        complaints = Complaints()
        said = [complaints.about(each, [], step) for step, each in enumerate([[], [], [gradient("w", 5.0)], []])]
        text = "every parameter that is looked at is frozen (requires_grad is off): there is nothing to show."
        assert said == [[f"step 0: {text}"], [], [], [f"step 3: {text}"]]
