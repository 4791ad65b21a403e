"""Tests of command-line overrides."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookbus._config.diagnostics import hook_entries
from hookbus._config.document import Document
from hookbus._config.overrides import apply_overrides, drop_replaced
from hookbus._config.yaml import parse

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


def apply_override(override: str, text: str = FILE) -> Document:
    document = parse(text, "run.yaml")
    assert apply_overrides(document, [override]) == []
    return document


def get_error(override: str, text: str = FILE) -> str:
    document = parse(text, "run.yaml")
    (message,) = apply_overrides(document, [override])
    return message.removeprefix(f"command line: {override}: ")


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
    def test_value_is_set_at_its_path(self, override: str, path: tuple[str, ...], value: Any) -> None:
        value_ = apply_override(override).data
        for key in path:
            value_ = value_[key]
        assert value_ == value

    def test_overrides_are_applied_in_order(self) -> None:
        document = parse(FILE, "run.yaml")
        assert apply_overrides(document, ["training.epochs=1", "training.epochs=2"]) == []
        assert document.data["training"] == {"epochs": 2}

    def test_override_is_the_location_of_its_value(self) -> None:
        document = apply_override("training.epochs=x")
        assert (
            document.format_problem(("training", "epochs"), "no.")
            == "command line: training.epochs=x: training.epochs: no."
        )
        assert document.format_problem(("metrics",), "no.") == "run.yaml:3:10: metrics: no."

    def test_override_is_the_location_of_a_replaced_section(self) -> None:
        document = apply_override("hooks=[{type: x, a: 1}]")
        expected = "command line: hooks=[{type: x, a: 1}]: hooks.0.interval: no."
        assert document.format_problem(("hooks", 0, "interval"), "no.") == expected


class TestSettingOfHooks:
    @pytest.mark.parametrize("name", ["one", "0"])
    def test_hook_is_found_by_type_and_index(self, name: str) -> None:
        document = apply_override(f"hooks.{name}.interval=4")
        assert document.data["hooks"][0] == {"type": "one", "interval": 4, "inner": {"a": 1}}

    def test_hook_is_found_by_instance_name(self) -> None:
        assert apply_override("hooks.third.x=1").data["hooks"][2] == {"type": "three", "name": "third", "x": 1}

    @pytest.mark.parametrize("type_", ["mine:OwnLogHook", "pkg.mod:OwnLogHook", "OwnLogHook", "some-package/own_log"])
    def test_hook_is_found_by_its_default_name(self, type_: str) -> None:
        assert apply_override("hooks.own_log.x=1", f"hooks: ['{type_}']\n").data["hooks"] == {
            0: {"type": type_, "x": 1}
        }

    def test_instance_name_takes_precedence_over_the_type(self) -> None:
        document = apply_override("hooks.ema.x=1", "hooks:\n- {type: ema}\n- {type: other, name: ema}\n")
        assert document.data["hooks"] == {0: {"type": "ema"}, 1: {"type": "other", "name": "ema", "x": 1}}

    def test_nested_settings_are_set(self) -> None:
        assert apply_override("hooks.one.inner.b=2").data["hooks"][0]["inner"] == {"a": 1, "b": 2}

    def test_hook_without_settings_is_converted_to_a_mapping(self) -> None:
        assert apply_override("hooks.two.x=1").data["hooks"][1] == {"type": "two", "x": 1}

    def test_replaced_settings_keep_type_and_name(self) -> None:
        assert apply_override("hooks.third={a: 1}").data["hooks"][2] == {"type": "three", "name": "third", "a": 1}

    def test_missing_hook_is_added(self) -> None:
        document = apply_override("hooks.new.x=1")
        assert document.data["hooks"][5] == {"type": "new", "x": 1}
        assert document.format_problem(("hooks", 5, "type"), "no.") == "command line: hooks.new.x=1: hooks.5.type: no."

    @pytest.mark.parametrize("text", ["seed: 1\n", "hooks:\n", "hooks: []\n"])
    def test_hook_is_added_to_a_file_without_hooks(self, text: str) -> None:
        assert apply_override("hooks.new.x=1", text).data["hooks"] == {0: {"type": "new", "x": 1}}

    def test_hook_of_a_list_that_an_earlier_override_sets_is_changed(self) -> None:
        document = parse(MAPPING, "run.yaml")
        assert apply_overrides(document, ["hooks=[one, two]", "hooks.two.x=1"]) == []
        assert document.data["hooks"] == {0: {"type": "one"}, 1: {"type": "two", "x": 1}}

    @pytest.mark.parametrize(
        ("text", "overrides", "hooks"),
        [
            ("hooks: [one]", ["hooks.0=ema"], {0: {"type": "ema"}}),
            ("hooks: [one]", ["hooks.one=ema", "hooks.ema.x=1"], {0: {"type": "ema", "x": 1}}),
            ("seed: 1", ["hooks=[one]", "hooks.0=ema"], {0: {"type": "ema"}}),
            ("seed: 1", ["hooks.new=ema"], {0: {"type": "ema"}}),
        ],
    )
    def test_hook_of_a_list_is_replaced_by_a_name(self, text: str, overrides: list[str], hooks: Any) -> None:
        document = parse(text, "run.yaml")

        assert apply_overrides(document, overrides) == []
        assert [entry for entry, _ in hook_entries(document) or ()] == list(hooks.values())

    @pytest.mark.parametrize(("text", "first"), [("hooks: {}", "seed=1"), ("seed: 1", "hooks={}")])
    def test_hook_is_added_to_an_empty_mapping_by_its_name(self, text: str, first: str) -> None:
        document = parse(text, "run.yaml")

        assert apply_overrides(document, [first, "hooks.slow={type: ema, x: 1}", "hooks.fast.type=ema"]) == []
        assert document.data["hooks"] == {"slow": {"type": "ema", "x": 1}, "fast": {"type": "ema"}}

    @pytest.mark.parametrize("override", ["hooks.0.x=1", "~hooks.0"])
    def test_index_in_an_empty_list_is_refused(self, override: str) -> None:
        (problem,) = apply_overrides(parse("hooks: []", "run.yaml"), [override])

        assert "invalid index '0' in a list of length 0" in problem

    @pytest.mark.parametrize("name", ["avg", "ema"])
    def test_hook_of_a_mapping_is_found_by_name_and_type(self, name: str) -> None:
        document = apply_override(f"hooks.{name}.momentum=0.5", MAPPING)
        assert document.data["hooks"]["avg"] == {"type": "ema", "momentum": 0.5}

    def test_null_hook_of_a_mapping_receives_settings(self) -> None:
        assert apply_override("hooks.checkpoint.interval=2", MAPPING).data["hooks"]["checkpoint"] == {"interval": 2}

    def test_hook_is_added_to_a_mapping(self) -> None:
        assert apply_override("hooks.new.x=1", MAPPING).data["hooks"]["new"] == {"type": "new", "x": 1}


class TestDeleting:
    def test_key_is_deleted(self) -> None:
        assert apply_override("~training.epochs").data["training"] == {}
        assert "training" not in apply_override("~training").data
        assert apply_override("~hooks.one.inner.a").data["hooks"][0]["inner"] == {}

    def test_list_item_is_deleted(self) -> None:
        document = apply_override("~metrics.0")
        assert document.data["metrics"] == ["f1"]
        assert document.format_problem(("metrics", 0), "no.") == "command line: ~metrics.0: metrics.0: no."

    @pytest.mark.parametrize("override", ["~hooks.third", "hooks.third=null", "hooks.third="])
    def test_hook_is_disabled(self, override: str) -> None:
        assert apply_override(override).data["hooks"][2] == {"type": "three", "name": "third", "enabled": False}

    def test_hook_without_settings_is_disabled(self) -> None:
        assert apply_override("~hooks.two").data["hooks"][1] == {"type": "two", "enabled": False}

    def test_disabled_hook_keeps_its_settings(self) -> None:
        one = {"type": "one", "interval": 1, "inner": {"a": 1}, "enabled": False}
        assert apply_override("~hooks.one").data["hooks"][0] == one

    def test_hook_of_a_mapping_is_disabled(self) -> None:
        assert apply_override("~hooks.avg", MAPPING).data["hooks"]["avg"] == {
            "type": "ema",
            "momentum": 0.9,
            "enabled": False,
        }
        assert apply_override("~hooks.checkpoint", MAPPING).data["hooks"]["checkpoint"] == {"enabled": False}

    def test_default_hook_missing_in_the_file_is_disabled(self) -> None:
        assert apply_override("~hooks.progress").data["hooks"][5] == {"type": "progress", "enabled": False}
        assert apply_override("~hooks.progress", "seed: 1\n").data["hooks"] == {
            0: {"type": "progress", "enabled": False}
        }

    def test_all_hooks_are_deleted(self) -> None:
        assert "hooks" not in apply_override("~hooks").data


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("training", "invalid override. Write key=value to set a key, or ~key to delete it."),
        ("a..b=1", "invalid key 'a..b'. Separate keys with single dots."),
        ("=1", "invalid key ''. Separate keys with single dots."),
        ("~", "invalid key ''. Separate keys with single dots."),
        ("a=[1", "invalid YAML: expected ',' or ']', but got '<stream end>'."),
        ("a={b: 1, b: 2}", "b: duplicate key; the first is in line 1."),
        ("a=runs/x #2", "the value contains a comment in YAML, which starts with #. Quote the value."),
        ("a=[1] # b", "the value contains a comment in YAML, which starts with #. Quote the value."),
        ("a=#f00", "the value is a comment in YAML, which starts with #. Quote the value."),
        ("training.epochs.x=1", "training.epochs is 5, which has no keys."),
        ("metrics.2=x", "invalid index '2' in a list of length 2. Use an integer, starting at 0."),
        ("metrics.f1=x", "invalid index 'f1' in a list of length 2. Use an integer, starting at 0."),
        ("hooks.9.x=1", "invalid index '9' in a list of length 5. Use an integer, starting at 0."),
        ("hooks.same.x=1", "'same' refers to more than one hook. Use one of: hooks.3, hooks.4."),
        ("~hooks.same", "'same' refers to more than one hook. Use one of: hooks.3, hooks.4."),
        ("~training.epoch", "cannot delete an unknown key. Did you mean 'epochs'?"),
        ("~metrics.7", "invalid index '7' in a list of length 2. Use an integer, starting at 0."),
        ("~hooks.leftt", "unknown hook 'leftt'. Did you mean 'left'?"),
        ("~hooks.progres", "unknown hook 'progres'. Did you mean 'progress'?"),
        ("~hooks.nobody", "unknown hook 'nobody'."),
        ("~hooks.nobody.x", "unknown hook 'nobody'."),
    ],
)
def test_invalid_override_has_a_reason(override: str, reason: str) -> None:
    assert get_error(override) == reason


def test_invalid_hooks_are_not_modified() -> None:
    assert get_error("hooks.one.x=1", "hooks: 5\n") == "hooks should be a list or a mapping, got 5."


def test_all_invalid_overrides_are_listed() -> None:
    document = parse(FILE, "run.yaml")
    problems = apply_overrides(document, ["a", "training.epochs=2", "b"])
    assert [problem.split(": ")[1] for problem in problems] == ["a", "b"]
    assert document.data["training"] == {"epochs": 2}


class TestLimits:
    @pytest.mark.parametrize(
        ("override", "problem"),
        [
            ("seed=" + "[" * 100_000, f"command line: seed={'[' * 74}…: nested deeper than 60 levels."),
            ("a" + ".a" * 100_000 + "=1", f"command line: {'a.' * 39}a…: nested deeper than 60 levels."),
            (f"metrics.{'9' * 5000}=1", f"command line: metrics.{'9' * 71}…: invalid index"),
            ("metrics.²=1", "command line: metrics.²=1: invalid index '²' in a list of length 2. Use an integer, "),
            (
                "training=\x1b[31m=",
                "command line: training=\\x1b[31m=: invalid YAML: the character U+001B is not allowed",
            ),
            ("a\0=1", "command line: a\\x00=1: invalid character U+0000, which no file name can contain. Remove it."),
        ],
        ids=["value", "key", "digits", "superscript", "escape", "nul"],
    )
    def test_hostile_override_is_an_error_of_one_short_line(self, override: str, problem: str) -> None:
        (message,) = apply_overrides(parse(FILE, "run.yaml"), [override])
        assert problem.partition("…")[0] in message
        assert message.isprintable()
        assert len(message) < 300


class TestReplacedOverrides:
    @pytest.mark.parametrize(
        ("overrides", "kept"),
        [
            (["seed=1", "a.b=1", "seed=2"], ["a.b=1", "seed=2"]),
            (["experiment_dir=x", "work_dir=y"], ["work_dir=y"]),
            (["seed=1", "~seed", "seed=2"], ["seed=1", "~seed", "seed=2"]),
            (["metrics=[a, b]", "metrics.1=c", "metrics=[a]"], ["metrics=[a, b]", "metrics.1=c", "metrics=[a]"]),
            (["hooks.one.interval=2", "hooks.one.interval=3"], ["hooks.one.interval=2", "hooks.one.interval=3"]),
            (["a=1", "a.b=2", "ab=3"], ["a=1", "a.b=2", "ab=3"]),
        ],
    )
    def test_only_an_override_of_the_same_key_replaces(self, overrides: list[str], kept: list[str]) -> None:
        assert drop_replaced(overrides) == kept

    @settings(deadline=None)
    @given(
        st.lists(
            st.sampled_from(
                [
                    *(
                        "seed=1",
                        "seed=2",
                        "~seed",
                        "training.epochs=2",
                        "training.epochs=3",
                        "training={}",
                        "~training",
                    ),
                    *("experiment_dir=a", "work_dir=b", "metrics.1=x", "metrics=[y]", "metrics=[y, z]", "~hooks.two"),
                    *("hooks.third.interval=2", "hooks.three.interval=3", "scheduler=", "scheduler.type=A"),
                ]
            ),
            max_size=7,
        )
    )
    def test_result_is_the_same_without_replaced_overrides(self, overrides: list[str]) -> None:
        complete, reduced = parse(FILE, "run.yaml"), parse(FILE, "run.yaml")
        if apply_overrides(complete, overrides) == []:
            assert apply_overrides(reduced, drop_replaced(overrides)) == []
            assert reduced.data == complete.data
