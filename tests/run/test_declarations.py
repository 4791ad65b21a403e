"""Tests of the validation of what hooks declare about themselves."""

from __future__ import annotations

from typing import Any

import pytest

from hookbus import Hook, HookBus
from hookbus.errors import ConfigError
from tests import toys

PACKAGE = "module tests.run.test_declarations"


@pytest.mark.parametrize(
    ("attribute", "value", "problem"),
    [
        ("unit", "steps", "unit: unknown value, got 'steps'. Did you mean 'step'?"),
        ("unit", "batch", "unit: unknown value, got 'batch'. Available: epoch, iter, step."),
        ("ranks", "0", "ranks: unknown value, got '0'. Available: all, main."),
        ("ranks", [0], "ranks: unknown value, got [0]. Available: all, main."),
        ("needs", ["batch"], "needs: should be an instance of hookbus.Needs, got ['batch']."),
        ("output_paths", ["path"], "output_paths: should map names of settings to paths, got ['path']."),
        (
            "best_metrics",
            ["val/loss"],
            "best_metrics: should map names of metrics to directions, got ['val/loss'].",
        ),
        (
            "best_metrics",
            {"val/loss": "min"},
            "best_metrics: unknown direction of 'val/loss', got 'min'. Use 'greater', 'less', or None to infer it.",
        ),
        (
            "required_metrics",
            "val/loss",
            "required_metrics: should be a list of names, got 'val/loss'. Set ['val/loss'].",
        ),
        ("provided_metrics", "gap", "provided_metrics: should be a list of names, got 'gap'. Set ['gap']."),
    ],
)
def test_invalid_declaration_is_an_error_before_the_run(attribute: str, value: Any, problem: str) -> None:
    hook = type("DeclaringHook", (Hook,), {attribute: value, "__module__": __name__})()
    with pytest.raises(ConfigError) as caught, HookBus([hook]).run(epochs=1):
        pytest.fail("the loop has started")
    assert caught.value.problems == [f"hook 'declaring' ({PACKAGE}): {problem}"]


def test_check_of_a_trainer_reports_a_single_name_once() -> None:
    hook = type("DeclaringHook", (Hook,), {"required_metrics": "val/loss", "__module__": __name__})()
    with pytest.raises(ConfigError) as caught:
        toys.trainer(hook, val_loader=toys.pairs(1), epochs=1).check()
    assert caught.value.problems == [
        f"hook 'declaring' ({PACKAGE}): required_metrics: should be a list of names, got 'val/loss'. Set ['val/loss']."
    ]


def test_valid_declarations_are_accepted() -> None:
    class DeclaringHook(Hook):
        unit = "epoch"
        ranks = "main"
        provided_metrics = None

        @property
        def best_metrics(self) -> Any:
            return {"val/loss": "less", "val/accuracy": "greater", "val/f1": None}

    with HookBus([DeclaringHook()]).run(epochs=1) as run:
        assert run.is_running
