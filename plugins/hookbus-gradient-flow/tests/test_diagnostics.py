import math

import pytest

from hookbus_gradient_flow.diagnostics import ProblemReporter, find_problems, format_problem
from hookbus_gradient_flow.statistics import Gradient


def make_gradient(name, maximum, l2=1.0):
    return Gradient(name, mean=maximum / 2, max=maximum, l2=l2)


@pytest.mark.parametrize(
    ("maximum", "l2", "kind"),
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
def test_gradient_is_classified_by_its_maximum_and_its_norm(maximum, l2, kind):
    problems = find_problems([make_gradient("w", maximum, l2)], [])
    assert list(problems) == ([kind] if kind else [])


def test_problems_contain_their_parameters():
    problems = find_problems(
        [make_gradient("a", 0.0, 0.0), make_gradient("b", 1.0), make_gradient("c", 5.0, 2e3)], ["d"]
    )
    assert {kind: list(norms) for kind, norms in problems.items()} == {
        "missing": ["d"],
        "vanishing": ["a"],
        "exploding": ["c"],
    }


def test_message_contains_count_names_and_remedy():
    assert format_problem("exploding", {"head.weight": 12345.0}, 300) == (
        "step 300: 1 parameter has an exploding gradient: head.weight (1.2e+04). Its norm is above 1000. "
        "Clip gradients with `clip_grad_norm`, or lower the learning rate."
    )


def test_message_names_at_most_five_parameters():
    text = format_problem("missing", {f"w{i}": math.nan for i in range(8)}, 1)
    assert text.startswith("step 1: 8 parameters have no gradient: w0, w1, w2, w3, w4 and 3 more. ")


class TestProblemReporter:
    def test_problem_is_reported_again_only_after_a_normal_gradient(self):
        complaints, bad, good = ProblemReporter(), [make_gradient("w", 5.0, 2e3)], [make_gradient("w", 5.0)]
        counts = [len(complaints.update(gradients, [], i)) for i, gradients in enumerate([bad, bad, good, bad])]
        assert counts == [1, 0, 0, 1]

    def test_message_names_only_new_parameters(self):
        complaints = ProblemReporter()
        complaints.update([], ["a"], 1)
        assert [text.partition(". ")[0] for text in complaints.update([], ["a", "b"], 2)] == [
            "step 2: 1 parameter has no gradient: b"
        ]

    def test_frozen_parameters_are_reported_once(self):
        complaints = ProblemReporter()
        measurements = [[], [], [make_gradient("w", 5.0)], []]
        messages = [complaints.update(gradients, [], i) for i, gradients in enumerate(measurements)]
        text = "all selected parameters are frozen (`requires_grad=False`). Unfreeze them, or change `targets`."
        assert messages == [[f"step 0: {text}"], [], [], [f"step 3: {text}"]]
