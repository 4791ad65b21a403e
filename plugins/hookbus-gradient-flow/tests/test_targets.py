import pytest

from hookbus_gradient_flow.targets import paths_of, resolve

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
