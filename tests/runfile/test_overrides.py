"""Changing a run file from the command line."""

from __future__ import annotations

from typing import Any

import pytest

from hookbus.runfile.overrides import apply_overrides
from hookbus.runfile.yaml import Document, read

FILE = """
training: {epochs: 5}
metrics: [accuracy, f1]
scheduler:
hooks:
  - {type: one, interval: 1, inner: {a: 1}}
  - two
  - {type: three, name: third}
  - {type: same, name: left}
  - {type: same, name: right}
"""
MAPPING = """
hooks:
  avg: {type: ema, momentum: 0.9}
  checkpoint:
"""


def changed(override: str, text: str = FILE) -> Document:
    document = read(text, "run.yaml")
    assert apply_overrides(document, [override]) == []
    return document


def refused(override: str, text: str = FILE) -> str:
    document = read(text, "run.yaml")
    (problem,) = apply_overrides(document, [override])
    return problem.removeprefix(f"command line: {override}: ")


class TestSetting:
    @pytest.mark.parametrize(
        ("override", "path", "value"),
        [
            ("training.epochs=7", ("training", "epochs"), 7),
            ("training.lr=1e-3", ("training", "lr"), 0.001),
            ("device=on", ("device",), "on"),
            ("loader.num_workers=2", ("loader",), {"num_workers": 2}),
            ("a.b.a=1", ("a",), {"b": {"a": 1}}),
            ("scheduler.type=StepLR", ("scheduler",), {"type": "StepLR"}),
            ("loss=", ("loss",), None),
            ("metrics.1=recall", ("metrics",), ["accuracy", "recall"]),
            ("metrics=[a, b]", ("metrics",), ["a", "b"]),
            ("load_from={path: x, weights: raw}", ("load_from",), {"path": "x", "weights": "raw"}),
            ("note=a=b", ("note",), "a=b"),
            ("experiment_dir=runs/y", ("work_dir",), "runs/y"),
        ],
    )
    def test_a_value_is_put_where_the_dots_lead(self, override: str, path: tuple[str, ...], value: Any) -> None:
        found = changed(override).data
        for key in path:
            found = found[key]
        assert found == value

    def test_overrides_are_applied_in_their_order(self) -> None:
        document = read(FILE, "run.yaml")
        assert apply_overrides(document, ["training.epochs=1", "training.epochs=2"]) == []
        assert document.data["training"] == {"epochs": 2}

    def test_a_value_remembers_the_override_that_put_it_there(self) -> None:
        document = changed("training.epochs=x")
        assert (
            document.problem(("training", "epochs"), "no.") == "command line: training.epochs=x: training.epochs: no."
        )
        assert document.problem(("metrics",), "no.") == "run.yaml:3:10: metrics: no."

    def test_a_section_that_was_replaced_belongs_to_the_override_with_all_that_is_in_it(self) -> None:
        document = changed("hooks=[{type: x, a: 1}]")
        expected = "command line: hooks=[{type: x, a: 1}]: hooks.0.interval: no."
        assert document.problem(("hooks", 0, "interval"), "no.") == expected


class TestSettingOfHooks:
    @pytest.mark.parametrize("name", ["one", "0"])
    def test_a_hook_is_found_by_type_and_by_number(self, name: str) -> None:
        document = changed(f"hooks.{name}.interval=4")
        assert document.data["hooks"][0] == {"type": "one", "interval": 4, "inner": {"a": 1}}

    def test_a_hook_is_found_by_its_instance_name(self) -> None:
        assert changed("hooks.third.x=1").data["hooks"][2] == {"type": "three", "name": "third", "x": 1}

    @pytest.mark.parametrize("kind", ["mine:OwnLogHook", "pkg.mod:OwnLogHook", "OwnLogHook", "some-package/own_log"])
    def test_a_hook_is_found_by_the_name_it_will_have(self, kind: str) -> None:
        assert changed("hooks.own_log.x=1", f"hooks: ['{kind}']\n").data["hooks"] == [{"type": kind, "x": 1}]

    def test_the_instance_name_wins_over_the_type(self) -> None:
        document = changed("hooks.ema.x=1", "hooks:\n- {type: ema}\n- {type: other, name: ema}\n")
        assert document.data["hooks"] == [{"type": "ema"}, {"type": "other", "name": "ema", "x": 1}]

    def test_settings_may_lie_deeper(self) -> None:
        assert changed("hooks.one.inner.b=2").data["hooks"][0]["inner"] == {"a": 1, "b": 2}

    def test_a_hook_given_by_its_name_alone_gets_settings(self) -> None:
        assert changed("hooks.two.x=1").data["hooks"][1] == {"type": "two", "x": 1}

    def test_all_settings_of_a_hook_are_replaced_but_its_type_and_name(self) -> None:
        assert changed("hooks.third={a: 1}").data["hooks"][2] == {"type": "three", "name": "third", "a": 1}

    def test_a_hook_that_is_not_there_is_added(self) -> None:
        document = changed("hooks.new.x=1")
        assert document.data["hooks"][5] == {"type": "new", "x": 1}
        assert document.problem(("hooks", 5, "type"), "no.") == "command line: hooks.new.x=1: hooks.5.type: no."

    @pytest.mark.parametrize("text", ["seed: 1\n", "hooks:\n", "hooks: []\n"])
    def test_a_file_without_hooks_gets_its_first(self, text: str) -> None:
        assert changed("hooks.new.x=1", text).data["hooks"] == [{"type": "new", "x": 1}]

    @pytest.mark.parametrize("name", ["avg", "ema"])
    def test_a_hook_of_a_mapping_is_found_by_name_and_by_type(self, name: str) -> None:
        document = changed(f"hooks.{name}.momentum=0.5", MAPPING)
        assert document.data["hooks"]["avg"] == {"type": "ema", "momentum": 0.5}

    def test_a_hook_without_settings_in_a_mapping_gets_some(self) -> None:
        assert changed("hooks.checkpoint.interval=2", MAPPING).data["hooks"]["checkpoint"] == {"interval": 2}

    def test_a_hook_is_added_to_a_mapping(self) -> None:
        assert changed("hooks.new.x=1", MAPPING).data["hooks"]["new"] == {"type": "new", "x": 1}


class TestDeleting:
    def test_a_key_is_removed(self) -> None:
        assert changed("~training.epochs").data["training"] == {}
        assert "training" not in changed("~training").data
        assert changed("~hooks.one.inner.a").data["hooks"][0]["inner"] == {}

    def test_an_item_of_a_list_is_removed(self) -> None:
        document = changed("~metrics.0")
        assert document.data["metrics"] == ["f1"]
        assert document.problem(("metrics", 0), "no.") == "command line: ~metrics.0: metrics.0: no."

    @pytest.mark.parametrize("override", ["~hooks.third", "hooks.third=null", "hooks.third="])
    def test_a_hook_is_switched_off(self, override: str) -> None:
        assert changed(override).data["hooks"][2] == {"type": "three", "name": "third", "enabled": False}

    def test_a_hook_given_by_its_name_alone_is_switched_off(self) -> None:
        assert changed("~hooks.two").data["hooks"][1] == {"type": "two", "enabled": False}

    def test_a_hook_keeps_the_settings_without_which_it_could_not_be_built(self) -> None:
        one = {"type": "one", "interval": 1, "inner": {"a": 1}, "enabled": False}
        assert changed("~hooks.one").data["hooks"][0] == one

    def test_a_hook_of_a_mapping_is_switched_off_so_that_no_default_takes_its_place(self) -> None:
        assert changed("~hooks.avg", MAPPING).data["hooks"]["avg"] == {"type": "ema", "momentum": 0.9, "enabled": False}
        assert changed("~hooks.checkpoint", MAPPING).data["hooks"]["checkpoint"] == {"enabled": False}

    def test_a_default_hook_that_the_file_does_not_have_is_switched_off(self) -> None:
        assert changed("~hooks.progress").data["hooks"][5] == {"type": "progress", "enabled": False}
        assert changed("~hooks.progress", "seed: 1\n").data["hooks"] == [{"type": "progress", "enabled": False}]

    def test_all_hooks_of_the_file_are_removed(self) -> None:
        assert "hooks" not in changed("~hooks").data


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("training", "invalid override. Write key=value to set a key, or ~key to delete it."),
        ("a..b=1", "'a..b' is not a key; keys are joined by single dots."),
        ("=1", "'' is not a key; keys are joined by single dots."),
        ("~", "'' is not a key; keys are joined by single dots."),
        ("a=[1", "invalid YAML: expected ',' or ']', but got '<stream end>'."),
        ("a={b: 1, b: 2}", "b: duplicate key; the first is in line 1."),
        ("a=#f00", "'#f00' is a comment in YAML. Quote the value."),
        ("training.epochs.x=1", "training.epochs is 5, which has no keys inside."),
        ("metrics.2=x", "'2' is not the number of an item: there are 2, counted from 0."),
        ("metrics.f1=x", "'f1' is not the number of an item: there are 2, counted from 0."),
        ("hooks.9.x=1", "'9' is not the number of an item: there are 5, counted from 0."),
        ("hooks.same.x=1", "'same' means more than one hook; say which one: hooks.3, hooks.4."),
        ("~hooks.same", "'same' means more than one hook; say which one: hooks.3, hooks.4."),
        ("~training.epoch", "there is nothing of this name to delete. Did you mean 'epochs'?"),
        ("~metrics.7", "'7' is not the number of an item: there are 2, counted from 0."),
        ("~hooks.leftt", "unknown hook 'leftt'. Did you mean 'left'?"),
        ("~hooks.progres", "unknown hook 'progres'. Did you mean 'progress'?"),
        ("~hooks.nobody", "unknown hook 'nobody'."),
        ("~hooks.nobody.x", "unknown hook 'nobody'."),
    ],
)
def test_an_override_that_means_nothing_says_why(override: str, reason: str) -> None:
    assert refused(override) == reason


def test_hooks_that_are_no_hooks_are_not_changed() -> None:
    assert refused("hooks.one.x=1", "hooks: 5\n") == "hooks is 5, which has no hooks inside."


def test_every_override_that_means_nothing_is_told() -> None:
    document = read(FILE, "run.yaml")
    problems = apply_overrides(document, ["a", "training.epochs=2", "b"])
    assert [problem.split(": ")[1] for problem in problems] == ["a", "b"]
    assert document.data["training"] == {"epochs": 2}
