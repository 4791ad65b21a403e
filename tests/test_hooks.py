"""Tests of the namespace of installed hook classes."""

from __future__ import annotations

import pickle
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch

import hookbus.hooks

if TYPE_CHECKING:
    from tests.conftest import Environment

SCRIPT = """
    import sys
    import hookbus.hooks
    before = "acme_hooks" in sys.modules
    from hookbus.hooks import GreetHook
    answer = {"before": before, "class": GreetHook.__module__, "dir": dir(hookbus.hooks), "errors": {}}
    for name in ("BrokenHook", "EMAHook", "GreetHok", "TwinHook"):
        try:
            exec(f"from hookbus.hooks import {name}")
        except ImportError as error:
            answer["errors"][name] = str(error)
"""


@pytest.fixture(scope="module")
def answer(environment: Environment) -> Any:
    return environment.answer(SCRIPT)


def test_hook_class_is_imported_on_access(answer: Any) -> None:
    assert answer["before"] is False
    assert answer["class"] == "acme_hooks"


def test_import_error_contains_the_cause(answer: Any) -> None:
    errors = answer["errors"]
    assert errors["EMAHook"] == "The hook 'EMAHook' is not installed. Run: pip install hookbus-ema"
    assert "No module named 'surely_not_there'" in errors["BrokenHook"]
    assert "Did you mean 'GreetHook'" in errors["GreetHok"]
    assert "is published by " in errors["TwinHook"]


def test_dir_lists_the_installed_classes(answer: Any) -> None:
    assert {"GreetHook", "SilentHook", "TwinHook"} <= set(answer["dir"])


def test_private_names_are_not_looked_up() -> None:
    assert not hasattr(hookbus.hooks, "__wrapped__")
    assert not hasattr(hookbus.hooks, "_private")


def test_names_of_the_core_are_listed_beside_the_installed_classes() -> None:
    from hookbus.hooks import HOOK_REGISTRY, HOOKS, BaseHook, HookRegistry, build_hook

    assert (BaseHook, build_hook) == (hookbus.Hook, hookbus.build_hook)
    assert HOOK_REGISTRY is HookRegistry is HOOKS is hookbus.HOOKS
    assert {"BaseHook", "HOOKS", "build_hook"} <= set(dir(hookbus.hooks))


def test_missing_attribute_is_an_attribute_error() -> None:
    assert not hasattr(hookbus.hooks, "per_tensor_affine")
    with pytest.raises(AttributeError, match="No installed package publishes the hook 'UnknownHook'"):
        _ = hookbus.hooks.UnknownHook


def test_pickle_finds_objects_of_other_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    # Objects without a module are searched in all modules; this one comes first.
    monkeypatch.setattr(sys, "modules", {"hookbus.hooks": hookbus.hooks, **sys.modules})
    assert pickle.loads(pickle.dumps(torch.per_tensor_affine)) is torch.per_tensor_affine
