"""Tests of settings in environment variables."""

from __future__ import annotations

import os
from typing import Any

import pytest

from hookbus._config.environment import read_variables
from hookbus._config.load import load_config
from hookbus._config.sources import list_settings
from hookbus.errors import ConfigError


def get_problems(monkeypatch: pytest.MonkeyPatch, **variables: str) -> list[str]:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as caught:
        load_config({})
    return caught.value.problems


@pytest.mark.parametrize(
    ("variables", "data"),
    [
        ({"HOOKBUS_SEED": "5"}, {"seed": "${env:HOOKBUS_SEED}"}),
        ({"hookbus_Seed": "5"}, {"seed": "${env:hookbus_Seed}"}),
        ({"HOOKBUS_WORK_DIR": "/data/runs"}, {"work_dir": "${env:HOOKBUS_WORK_DIR}"}),
        ({"HOOKBUS_METRICS": "[a, b]"}, {"metrics": ["a", "b"]}),
        ({"HOOKBUS_DEVICE": "'1'"}, {"device": "1"}),
        ({"HOOKBUS_LOSS": "null"}, {"loss": None}),
        ({"HOOKBUS_LOSS": ""}, {"loss": None}),
        ({"HOOKBUS_WORK_DIR": "${env:HOME}/x"}, {"work_dir": "${env:HOME}/x"}),
        (
            {"HOOKBUS_HOOKS__CHECKPOINT__MAX_KEEP_CKPTS": "[3]", "HOOKBUS_HOOKS__CHECKPOINT__INTERVAL": "[4]"},
            {"hooks": {"checkpoint": {"max_keep_ckpts": [3], "interval": [4]}}},
        ),
        ({"HOOKBUS_SCHEDULER__T_max": "[3]"}, {"scheduler": {"T_max": [3]}}),
        ({"HOOKBUS_A__B": "[1]", "HOOKBUS_A": "{b2: 3}"}, {"a": {"b2": 3, "b": [1]}}),
    ],
)
def test_variable_sets_a_key(variables: dict[str, str], data: Any) -> None:
    document = read_variables(variables)
    assert document is not None
    assert (document.data, document.problems) == (data, [])


def test_other_variables_are_no_settings() -> None:
    others = {"HOOKBUS_BLOCK": "ema", "HOOKBUS_DEBUG_RANKS": "1", "HOOKBUSX": "1", "X_HOOKBUS_SEED": "1", "SEED": "1"}
    assert read_variables(others) is None


def test_no_variable_is_set_in_the_tests() -> None:
    assert [name for name in os.environ if name.upper().startswith("HOOKBUS_")] == []


def test_value_is_parsed_like_that_of_an_override(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"SEED": "5", "OPTIMIZER": "{type: SGD}", "OPTIMIZER__LR": "1e-3", "DEFAULT_HOOKS": "false"}
    for name, value in {**variables, "TRAINING__EPOCHS": "2", "DEVICE": "7", "MODEL__TYPE": "x"}.items():
        monkeypatch.setenv(f"HOOKBUS_{name}", value)
    config = load_config({"model": {"password": "1"}})
    assert (config.seed, config.optimizer.settings, config.default_hooks) == (5, {"lr": 0.001}, False)
    assert config.device == "7"  # a string is required, so that the number is its text


def test_hook_is_added_and_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOKBUS_HOOKS__EMA__MOMENTUM", "0.5")
    monkeypatch.setenv("HOOKBUS_HOOKS__JSONL", "null")
    assert load_config({}).hooks == [
        {"type": "jsonl", "enabled": False},
        {"type": "ema", "name": "ema", "momentum": 0.5},
    ]
    _, ema = load_config({"hooks": [{"type": "ema", "priority": 2}]}).hooks
    assert ema == {"type": "ema", "name": "ema", "momentum": 0.5, "priority": 2}


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("HOOKBUS_TRAINNG__EPOCHS", "5", "trainng: unknown key. Did you mean 'training'?"),
        ("HOOKBUS_LOADER__NUM_WROKERS", "5", "loader.num_wrokers: unknown key. Did you mean 'num_workers'?"),
        ("HOOKBUS_SEED", "a", "seed: should be a valid integer, got 'a'."),
        ("HOOKBUS_LOADER", "[1", "invalid YAML: expected ',' or ']', but got '<stream end>'."),
        ("HOOKBUS_", "5", "invalid name. Write HOOKBUS_KEY, or HOOKBUS_SECTION__KEY."),
        ("HOOKBUS_LOADER__", "5", "invalid name. Write HOOKBUS_KEY, or HOOKBUS_SECTION__KEY."),
        ("hookbus_block", "ema", "invalid name. Write HOOKBUS_BLOCK."),
        ("HOOKBUS_DEFAULTS", "no.yaml", "defaults.0: no.yaml: the file cannot be read"),
        ("HOOKBUS_DEFAULTS", "[no.yaml]", "defaults.0: no.yaml: the file cannot be read"),
        ("HOOKBUS_MODEL__LINK", "${env:UNSET_X}", "model.link: the environment variable UNSET_X is not set."),
    ],
)
def test_invalid_variable_is_an_error(monkeypatch: pytest.MonkeyPatch, name: str, value: str, problem: str) -> None:
    assert any(line.startswith(f"{name}: {problem}") for line in get_problems(monkeypatch, **{name: value}))


def test_two_variables_of_one_key_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    assert get_problems(monkeypatch, HOOKBUS_SEED="5", hookbus_seed="6") == [
        "hookbus_seed: HOOKBUS_SEED is set as well. Unset one of the two variables."
    ]
    monkeypatch.delenv("hookbus_seed")
    assert get_problems(monkeypatch, HOOKBUS_SEED__A="1") == [
        "HOOKBUS_SEED__A: HOOKBUS_SEED is set as well, and has no keys. Unset one of the two variables."
    ]
    monkeypatch.delenv("HOOKBUS_SEED__A")
    assert get_problems(monkeypatch, HOOKBUS_MODEL="{type: x, a: {b: 1}}", HOOKBUS_MODEL__A__B="2") == [
        "HOOKBUS_MODEL__A__B: HOOKBUS_MODEL is set as well. Unset one of the two variables."
    ]


def test_source_of_each_value_in_a_variable_is_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOKBUS_MODEL", "{type: x, width: 3}")
    monkeypatch.setenv("HOOKBUS_MODEL__DEPTH", "2")
    settings = list_settings({"model": {"type": "x"}})
    assert {setting.path: setting.source for setting in settings} == {
        "model.type": "config",
        "model.width": "HOOKBUS_MODEL",
        "model.depth": "HOOKBUS_MODEL__DEPTH",
    }


def test_value_of_a_variable_is_not_in_the_message_about_its_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    (problem,) = get_problems(monkeypatch, HOOKBUS_LOADER__PASSWORD="h4shh4sh")
    assert problem.startswith("HOOKBUS_LOADER__PASSWORD: loader.password: unknown key.")
    assert "h4shh4sh" not in problem


def test_limit_in_tokens_is_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOKBUS_TRAINING__TOKENS", "2e9")
    monkeypatch.setenv("HOOKBUS_TRAINING__BATCH_TOKENS", "n")
    training = load_config({}).training
    assert training is not None
    assert training.tokens == 2_000_000_000
    assert {setting.path: setting.value for setting in list_settings({})}["training.tokens"] == 2e9
