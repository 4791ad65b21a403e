"""Tests of the hints about keys in the wrong place."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

import hookbus._utils.known_keys
from hookbus._utils.known_keys import (
    COMMON_KEYS,
    FRAMEWORK_ALIASES,
    FRAMEWORK_KEYS,
    HOOK_SETTINGS,
    SETTING_NAMES,
    TOP_LEVEL_KEYS,
    explain_unknown_key,
    find_framework_alias,
    suggest_type,
)
from hookbus.lifecycle import POINTS

HOOK_KEYS = [*COMMON_KEYS, "interval"]


@pytest.mark.slow  # imports all plugins
def test_known_keys_file_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("generate", Path(__file__).parents[1] / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.known_keys_text() == Path(hookbus._utils.known_keys.__file__).with_suffix(".json").read_text()


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("max_keep_ckpts", "is a setting of the hook `checkpoint`: write it in hooks."),
        ("momentum", "is a setting of the hook `ema` or `mean_teacher`: write it in hooks."),
        ("epochs", "belongs in `training`."),
        ("num_workers", "belongs in `loader`."),
        ("max_epochs", "is `training.epochs` in hookbus."),
        ("custom_hooks", "is `hooks` in hookbus."),
        ("lr", "is `optimizer.lr` in hookbus."),
        ("weight_decay", "is `optimizer.weight_decay` in hookbus."),
        ("frequency", "is a setting of every hook: write it in the settings of a hook."),
        ("ema", "is a hook: write it in hooks."),
        ("EMAHook", "is a hook: write it in hooks."),
    ],
)
def test_key_at_the_top_level_names_its_place(key: str, hint: str) -> None:
    assert explain_unknown_key(key, TOP_LEVEL_KEYS) == f" `{key}` {hint}"


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("work_dir", "belongs at the top level."),
        ("epochs", "belongs in `training`."),
        ("patience", "is a setting of the hook `early_stopping`: write it in hooks."),
        ("monitor", "belongs in `scheduler`, or is a setting of the hook `early_stopping`: write it in hooks."),
    ],
)
def test_key_in_a_hook_names_its_place(key: str, hint: str) -> None:
    assert explain_unknown_key(key, HOOK_KEYS) == f" `{key}` {hint}"


@pytest.mark.parametrize(
    ("hook", "key", "setting"),
    [
        ("ema", "decay", "momentum"),
        ("early_stopping", "metric", "monitor"),
        ("early_stopping", "greater_is_better", "mode"),
        ("checkpoint", "monitor", "best_metric"),
        ("checkpoint", "mode", "rule"),
        ("checkpoint", "save_total_limit", "max_keep_ckpts"),
        ("logger", "log_every_n_steps", "interval"),
    ],
)
def test_setting_of_another_framework_names_that_of_the_hook(hook: str, key: str, setting: str) -> None:
    assert explain_unknown_key(key, [*COMMON_KEYS, *HOOK_SETTINGS[hook]]) == f" `{key}` is `{setting}` in hookbus."


def test_names_of_settings_are_those_of_hooks() -> None:
    settings = {name for accepted in HOOK_SETTINGS.values() for name in accepted}
    assert set(SETTING_NAMES) <= settings


def test_misspelled_key_of_another_place_is_recognized() -> None:
    assert explain_unknown_key("max_keep_ckpt", TOP_LEVEL_KEYS) == (
        " Did you mean 'max_keep_ckpts'? `max_keep_ckpts` is a setting of the hook `checkpoint`: write it in hooks."
    )
    assert explain_unknown_key("intervall", HOOK_KEYS) == " Did you mean 'interval'?"
    assert explain_unknown_key("zzz", ["a", "b"]) == " Available: a, b."


def test_misspelled_setting_of_the_same_hook_precedes_a_setting_of_another() -> None:
    assert explain_unknown_key("target", [*COMMON_KEYS, "targets"]) == " Did you mean 'targets'?"
    assert explain_unknown_key("metric", [*COMMON_KEYS, "metrics"]) == " Did you mean 'metrics'?"
    assert explain_unknown_key("target", HOOK_KEYS).startswith(" `target` is a setting of the hook `visualization`")


def test_setting_of_many_hooks_is_no_evidence_in_another_hook() -> None:
    assert explain_unknown_key("interval", COMMON_KEYS).startswith(" Available: enabled, frequency")
    assert "or is a setting of " in explain_unknown_key("interval", TOP_LEVEL_KEYS)


def test_type_is_suggested_if_a_single_hook_has_the_keys() -> None:
    assert suggest_type({"interval", "max_keep_ckpts", "name"}) == (
        " Its keys are those of `checkpoint`: add `type: checkpoint`."
    )
    assert suggest_type({"interval"}) == suggest_type(()) == " Add `type: ...`."


def test_names_of_other_frameworks_are_no_keys_of_a_run_file() -> None:
    assert set(FRAMEWORK_KEYS) & set(TOP_LEVEL_KEYS) == set()


@pytest.mark.parametrize(
    ("key", "known", "hint"),
    [
        (
            "scheduler",
            [*COMMON_KEYS, "schedulers"],
            " Did you mean 'schedulers'? `scheduler` belongs at the top level.",
        ),
        (
            "schedulers",
            ["scheduler", "loader"],
            " Did you mean 'scheduler'? `schedulers` is a setting of the hook `param_scheduler`: write it in hooks.",
        ),
    ],
)
def test_key_with_a_similar_accepted_key_has_both_hints(key: str, known: list[str], hint: str) -> None:
    assert explain_unknown_key(key, known) == hint


PAGE = Path(__file__).parents[2] / "docs" / "coming-from.md"
SECTIONS = {"Lightning": "Lightning", "Hugging Face": "Hugging Face Trainer", "Keras": "Keras"}


def rows(framework: str) -> dict[str, str]:
    """Return the callbacks and points of the rows of a table in which they correspond one to one."""
    sections = PAGE.read_text().split("\n## ")
    text = next(part for part in sections if part.startswith(f"{SECTIONS[framework]}\n"))
    points: dict[str, str] = {}
    row = re.compile(r"^\| ((?:`on_\w+`(?:, )?)+) \| ((?:`\w+`(?:, )?)+) \|$", flags=re.MULTILINE)
    for callbacks, names in row.findall(text):
        points.update(zip(re.findall(r"\w+", callbacks), re.findall(r"\w+", names), strict=True))
    return points


@pytest.mark.parametrize("framework", FRAMEWORK_ALIASES)
def test_framework_aliases_match_the_documentation_page(framework: str) -> None:
    listed = rows(framework)
    assert len(listed) >= 6
    assert {name: FRAMEWORK_ALIASES[framework].get(name, name) for name in listed} == listed


def test_framework_aliases_refer_to_existing_points() -> None:
    assert {point for names in FRAMEWORK_ALIASES.values() for point in names.values()} <= set(POINTS)
    assert not {name for names in FRAMEWORK_ALIASES.values() for name in names} & set(POINTS)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("on_train_batch_end", ("Lightning and Keras", "after_train_iter")),
        ("on_epoch_end", ("Hugging Face and Keras", "after_epoch")),
        ("on_validation_end", ("Lightning", "after_val")),
        ("on_fire", None),
    ],
)
def test_lookup_returns_the_frameworks_and_the_point(name: str, expected: tuple[str, str] | None) -> None:
    assert find_framework_alias(name) == expected
