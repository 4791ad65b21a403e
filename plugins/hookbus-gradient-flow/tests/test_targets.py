import pytest

from hookbus_gradient_flow.targets import list_paths, match_targets, select_parameters

NAMES = ["stem.weight", "layer1.0.weight", "layer1.0.bias", "layer10.0.weight", "head.weight"]


@pytest.mark.parametrize(
    ("targets", "selected"),
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
def test_target_selects_the_parameters_below_its_path_or_matching_paths(targets, selected):
    assert match_targets(NAMES, targets) == (selected, [])


def test_unmatched_targets_are_returned():
    assert match_targets(NAMES, ["layer2", "head", "*.gamma", "layer"]) == (
        ["head.weight"],
        ["layer2", "*.gamma", "layer"],
    )


def test_paths_include_modules_and_parameters():
    assert list_paths(["a.0.weight", "a.0.bias", "b"]) == ["a", "a.0", "a.0.weight", "a.0.bias", "b"]


def test_shared_parameter_is_selected_once_by_its_first_matching_name():
    shared, own = object(), object()
    parameters = {"in.weight": shared, "in.bias": own, "out.weight": shared}
    assert select_parameters(parameters, []) == {"in.weight": shared, "in.bias": own}
    assert select_parameters(parameters, ["out"]) == {"out.weight": shared}
    assert select_parameters(parameters, ["out", "in"]) == {"in.weight": shared, "in.bias": own}
