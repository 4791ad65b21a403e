"""Tests of the checks of copies."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from hookbus import Hook
from hookbus.testing.states import check_copies

SCRIPT = "from hookbus import Hook\nclass ScriptHook(Hook): ..."


def test_class_of_executed_code_is_copied_without_pickle() -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(SCRIPT, names)
    check_copies(names["ScriptHook"]())


def test_class_that_pickle_finds_is_pickled(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("module_of_a_hook")
    exec(SCRIPT, vars(module))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    hook: Hook = module.ScriptHook()
    check_copies(hook)
    # pickle rejects a class whose name refers to another class.
    monkeypatch.setattr(module, "ScriptHook", type("ScriptHook", (Hook,), {}))
    with pytest.raises(AssertionError, match="pickle fails: .* not the same object as module_of_a_hook.ScriptHook"):
        check_copies(hook)
