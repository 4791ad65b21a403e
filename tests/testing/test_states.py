"""Tests of the checks of copies."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from hookbus import Hook
from hookbus.testing import fingerprint
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


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        (1, True),
        ("a", b"a"),
        ([1, 2], [2, 1]),
        ([[1], 2], [[1, 2]]),
        ({"a": 1}, {"b": 1}),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (torch.zeros(2), torch.zeros(2, 1)),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
        (torch.tensor(0.0), torch.tensor(-0.0)),
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0000002])),
        (None, 0),
    ],
    ids=str,
)
def test_different_values_have_different_fingerprints(one: Any, other: Any) -> None:
    assert fingerprint(one) != fingerprint(other)


def test_bitwise_identical_values_have_equal_fingerprints() -> None:
    value = {"a": [1, (2.5, None)], "b": torch.arange(6).reshape(2, 3), "c": torch.tensor(1.5, dtype=torch.bfloat16)}
    same = {"a": [1, (2.5, None)], "b": torch.arange(6).reshape(3, 2).reshape(2, 3), "c": value["c"].clone()}
    assert fingerprint(value) == fingerprint(same)
    assert fingerprint(torch.arange(6).reshape(2, 3).T) == fingerprint(torch.arange(6).reshape(2, 3).T.contiguous())
    assert fingerprint(torch.ones(1, requires_grad=True)) == fingerprint(torch.ones(1))
