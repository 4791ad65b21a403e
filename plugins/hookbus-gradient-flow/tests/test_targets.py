import pytest

from hookbus_gradient_flow.targets import chosen_of, paths_of, resolve

NAMES = ["stem.weight", "layer1.0.weight", "layer1.0.bias", "layer10.0.weight", "head.weight"]


@pytest.mark.parametrize(
    ("targets", "found"),
    [
        ([], NAMES),
        (["layer1"], ["layer1.0.weight", "layer1.0.bias"]),
        (["layer1.0.bias"], ["layer1.0.bias"]),
        (["layer1*"], ["layer1.0.weight", "layer1.0.bias", "layer10.0.weight"]),
        (["layer?"], ["layer1.0.weight", "layer1.0.bias"]),
        (["*.weight"], ["stem.weight", "layer1.0.weight", "layer10.0.weight", "head.weight"]),
        (["head", "stem", "head.weight"], ["stem.weight", "head.weight"]),
    ],
)
def test_a_path_stands_for_what_is_below_it_and_a_pattern_for_every_path_that_it_matches(targets, found):
    assert resolve(NAMES, targets) == (found, [])


def test_targets_that_stand_for_nothing_are_told():
    assert resolve(NAMES, ["layer2", "head", "*.gamma", "layer"]) == (["head.weight"], ["layer2", "*.gamma", "layer"])


def test_every_path_can_be_a_target():
    assert paths_of(["a.0.weight", "a.0.bias", "b"]) == ["a", "a.0", "a.0.weight", "a.0.bias", "b"]


def test_a_shared_parameter_is_there_once_under_the_first_name_that_was_chosen():
    shared, own = object(), object()
    parameters = {"in.weight": shared, "in.bias": own, "out.weight": shared}
    assert chosen_of(parameters, []) == {"in.weight": shared, "in.bias": own}
    assert chosen_of(parameters, ["out"]) == {"out.weight": shared}
    assert chosen_of(parameters, ["out", "in"]) == {"in.weight": shared, "in.bias": own}
