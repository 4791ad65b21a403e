"""Tests of merging: mappings by key, hooks by name."""

from __future__ import annotations

from copy import deepcopy
from functools import reduce
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookbus._config.document import Document
from hookbus._config.load import load_config
from hookbus._config.merging import merge
from hookbus._config.overrides import apply_overrides
from hookbus._config.yaml import parse

if TYPE_CHECKING:
    from tests.conftest import Project

KEYS = st.sampled_from(["seed", "a", "b"])
VALUES = st.one_of(st.none(), st.integers(0, 3), st.lists(st.integers(0, 3), max_size=2))
TREES = st.dictionaries(KEYS, st.recursive(VALUES, lambda inner: st.dictionaries(KEYS, inner, max_size=3)), max_size=3)


def merge_layers(*layers: Any) -> Document:
    document = Document("run.yaml", data={})
    for layer in layers:
        merge(document, Document("layer", data=deepcopy(layer)))
    return document


def merge_texts(*texts: str) -> Document:
    """Merge YAML files, of which the last one is the run file."""
    document = Document("run.yaml", data={})
    for text in texts:
        merge(document, parse(text, "run.yaml"))
    return document


def merge_hooks(*layers: Any) -> list[Any]:
    return list(merge_layers(*({"hooks": layer} for layer in layers)).data["hooks"].items())


def merge_plainly(below: Any, above: Any) -> Any:
    if not isinstance(below, dict) or not isinstance(above, dict):
        return above
    return {**below, **{key: merge_plainly(below.get(key), value) for key, value in above.items()}}


@given(st.lists(TREES, max_size=4))
def test_layers_are_merged_like_mappings_one_after_another(layers: list[dict[str, Any]]) -> None:
    assert merge_layers(*layers).data == reduce(merge_plainly, layers, {})


@given(st.lists(st.dictionaries(st.sampled_from(["one", "two"]), TREES, max_size=2), max_size=4))
def test_mappings_of_hooks_are_merged_like_other_mappings(layers: list[dict[str, Any]]) -> None:
    document = merge_layers(*({"hooks": layer} for layer in layers))
    assert document.data.get("hooks", {}) == reduce(merge_plainly, layers, {})


class TestMappings:
    def test_list_replaces_a_list(self) -> None:
        assert merge_layers({"metrics": ["a", "b"]}, {"metrics": ["c"]}).data == {"metrics": ["c"]}

    def test_another_type_replaces_all_settings(self) -> None:
        base = {"optimizer": {"type": "SGD", "lr": 1, "momentum": 0.9}}
        assert merge_layers(base, {"optimizer": {"type": "AdamW", "lr": 2}}).data == {
            "optimizer": {"type": "AdamW", "lr": 2}
        }
        assert merge_layers(base, {"optimizer": {"type": "SGD", "lr": 2}}).data == {
            "optimizer": {"type": "SGD", "lr": 2, "momentum": 0.9}
        }
        assert merge_layers(base, {"optimizer": {"lr": 2}}).data["optimizer"]["momentum"] == 0.9

    def test_limit_replaces_the_other_limit(self) -> None:
        base = {"training": {"epochs": 2, "accumulate": 3}}
        assert merge_layers(base, {"training": {"iterations": 5}}).data["training"] == {
            "accumulate": 3,
            "iterations": 5,
        }
        both = merge_layers(base, {"training": {"epochs": 1, "iterations": 5}}).data["training"]
        assert both == {"epochs": 1, "accumulate": 3, "iterations": 5}  # an error of the validation

    def test_layers_are_not_modified_by_later_ones(self) -> None:
        layer = Document("layer", data={"model": {"a": 1}})
        document = Document("run.yaml", data={})
        merge(document, layer)
        assert document.data == {"model": {"a": 1}}


class TestHooks:
    @pytest.mark.parametrize(
        ("below", "above", "merged"),
        [
            # the forms, in which `ema` is an installed hook
            ({"ema": {"a": 1}}, {"ema": {"b": 2}}, [("ema", {"a": 1, "b": 2})]),
            ({"ema": {"a": 1}}, [{"type": "ema", "b": 2}], [("ema", {"a": 1, "type": "ema", "b": 2})]),
            ({"ema": {"a": 1}}, ["ema"], [("ema", {"a": 1, "type": "ema"})]),
            ([{"type": "ema", "a": 1}], {"ema": {"b": 2}}, [(0, {"type": "ema", "a": 1, "b": 2})]),
            ([{"type": "ema", "a": 1}], [{"type": "ema", "a": 2}], [(0, {"type": "ema", "a": 2})]),
            (["ema"], [{"type": "EMAHook", "a": 2}], [(0, {"type": "EMAHook", "a": 2})]),
            # instance names
            ([{"type": "ema", "name": "x"}], {"x": {"a": 1}}, [(0, {"type": "ema", "name": "x", "a": 1})]),
            (
                {"x": {"type": "ema"}},
                [{"type": "ema", "name": "x", "a": 1}],
                [("x", {"type": "ema", "name": "x", "a": 1})],
            ),
            ({"x": {"a": 1}}, {"x": {"type": "ema"}}, [("x", {"a": 1, "type": "ema"})]),
            ({"x": {"type": "ema"}}, ["ema"], [("x", {"type": "ema"}), (1, {"type": "ema"})]),
            # new hooks follow
            (["ema"], {"timer": {"a": 1}}, [(0, {"type": "ema"}), ("timer", {"a": 1})]),
            (
                {"ema": {}, "timer": {}},
                ["sync", "timer"],
                [("ema", {}), ("timer", {"type": "timer"}), (2, {"type": "sync"})],
            ),
            # two entries of a layer are two hooks
            ({"ema": {}}, ["ema", "ema"], [("ema", {"type": "ema"}), (1, {"type": "ema"})]),
            ({"ema": {"a": 1}}, {"x": {"name": "ema"}, "ema": {"a": 2}}, [("ema", {"a": 2}), ("x", {"name": "ema"})]),
            # another type
            ({"ema": {"a": 1}}, {"ema": {"type": "sync"}}, [("ema", {"type": "sync"})]),
            ([{"type": "ema", "name": "x", "a": 1}], {"x": {"type": "sync"}}, [(0, {"type": "sync", "name": "x"})]),
            # removal
            ({"ema": {"a": 1}}, {"ema": None}, [("ema", None)]),
            ({"x": {"type": "ema", "a": 1}}, {"x": None}, [("x", {"type": "ema", "enabled": False})]),
            (["ema"], {"ema": None}, [(0, {"type": "ema", "enabled": False})]),
            (["ema"], [{"type": "ema", "enabled": False}], [(0, {"type": "ema", "enabled": False})]),
            # no hooks
            (["ema"], None, [(0, {"type": "ema"})]),
            (["ema"], [], [(0, {"type": "ema"})]),
            (None, {"ema": {}}, [("ema", {})]),
            # invalid entries are reported by the validation
            ({"ema": {"a": 1}}, {"ema": 3}, [("ema", 3)]),
            ([3, None], {"ema": {}}, [(0, 3), (1, None), ("ema", {})]),
        ],
    )
    def test_hooks_are_merged_by_name(self, below: Any, above: Any, merged: Any) -> None:
        assert merge_hooks(below, above) == merged

    def test_removed_hook_is_enabled_by_a_later_layer(self) -> None:
        assert merge_hooks({"ema": {"a": 1}}, {"ema": None}, {"ema": {"b": 2}}) == [("ema", {"b": 2})]
        assert merge_hooks(["ema"], {"ema": None}, {"ema": {"b": 2}}) == [(0, {"type": "ema", "name": "ema", "b": 2})]

    def test_settings_of_a_single_hook_replace_the_hooks(self) -> None:
        assert merge_layers({"hooks": ["ema"]}, {"hooks": {"type": "ema"}}).data["hooks"] == {"type": "ema"}

    def test_merged_hooks_are_built(self, project: Project) -> None:
        project.write("hooks: {'parts:ProbeHook': {interval: 3, ratio: 0.1}, 'parts:QuietHook': {}}\n", "base.yaml")
        project.write("defaults: [base.yaml]\nhooks:\n- {type: 'parts:ProbeHook', interval: 5}\n- parts:KeywordHook\n")
        hooks = load_config("run.yaml", ["~hooks.quiet", "hooks.2.interval=7"]).build_hooks()
        assert [type(hook).__name__ for hook in hooks] == ["ProbeHook", "QuietHook", "KeywordHook"]
        assert (hooks[0].config.interval, hooks[0].config.ratio) == (5, 0.1)
        assert (hooks[1].config.enabled, hooks[2].interval) == (False, 7)


class TestLocations:
    def test_each_value_has_the_location_of_its_layer(self) -> None:
        document = merge_texts("model: {a: 1, b: 2}\nseed: 1\n", "\n\nmodel: {b: 3}\n")
        locations = [document.find_location(path) for path in (("model", "a"), ("model", "b"), ("model",), ("seed",))]
        assert locations == [(1, 12), (3, 12), (3, 8), (2, 7)]
        assert document.replaced == {("model", "b"): [((1, 18), 2)]}

    def test_values_of_a_replaced_mapping_have_no_location(self) -> None:
        document = merge_texts("model: {type: a, b: {c: 1}}\n", "\nmodel: {type: d}\n")
        assert document.find_location(("model", "b", "c")) == (2, 8)
        assert document.replaced["model", "b", "c"] == [((1, 25), 1)]

    def test_hooks_keep_their_locations(self) -> None:
        document = merge_texts("hooks: [ema, {type: timer, interval: 3}]\n", "\nhooks: {timer: {a: 1}, sync: {}}\n")
        paths = [("hooks", 0, "type"), ("hooks", 1, "interval"), ("hooks", 1, "a"), ("hooks", "sync")]
        assert [document.find_location(path) for path in paths] == [(1, 9), (1, 38), (2, 20), (2, 30)]

    def test_invalid_values_that_are_replaced_stay_errors(self) -> None:
        document = merge_texts("seed: !x 1\nmodel: {a: !x 1}\n", "seed: 2\n")
        assert [problem.partition(": unsupported")[0] for problem in document.problems] == [
            "run.yaml:1:7: seed",
            "run.yaml:2:12: model.a",
        ]
        assert ("seed",) not in document.invalid_paths
        assert ("model", "a") in document.invalid_paths

    def test_override_refers_to_merged_hooks_by_name_and_index(self) -> None:
        document = merge_texts("hooks: {ema: {a: 1}}\n", "hooks: [{type: timer}]\n")
        assert apply_overrides(document, ["hooks.ema.a=2", "hooks.timer.b=3", "hooks.1.c=4", "hooks.sync.d=5"]) == []
        assert list(document.data["hooks"].values()) == [
            {"a": 2},
            {"type": "timer", "b": 3, "c": 4},
            {"type": "sync", "d": 5},
        ]
