"""Tests of partial sections: settings without a type belong to the default type, or to the type of a lower layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from hookbus._config.load import load_config
from hookbus.errors import ConfigError

if TYPE_CHECKING:
    from tests.conftest import Project

ADAMW = {"type": "AdamW", "lr": 0.001}


def load(section: str, source: Any = "run.yaml", *overrides: str) -> Any:
    value = getattr(load_config(source, overrides), section)
    return value if value is None or isinstance(value, str) else value.model_dump(exclude_unset=True)


@pytest.mark.parametrize(
    ("written", "overrides", "expected"),
    [
        ("{}", ["optimizer.lr=0.1"], {**ADAMW, "lr": 0.1}),
        ("{}", ["optimizer.weight_decay=0.1"], {**ADAMW, "weight_decay": 0.1}),
        ("{}", ["optimizer={lr: 0.1}"], {**ADAMW, "lr": 0.1}),
        ("optimizer: {lr: 0.1}", [], {**ADAMW, "lr": 0.1}),
        ("optimizer: {}", [], ADAMW),
        ("optimizer: {type: AdamW}", [], ADAMW),
        ("optimizer: {type: AdamW, lr: 0.1}", ["~optimizer.lr"], ADAMW),
        ("optimizer: {type: SGD}", [], {"type": "SGD"}),
        ("optimizer: {type: SGD, lr: 0.1}", ["optimizer.momentum=0.9"], {"type": "SGD", "lr": 0.1, "momentum": 0.9}),
        ("{}", ["optimizer.type=SGD", "optimizer.lr=0.1"], {"type": "SGD", "lr": 0.1}),
        ("optimizer: {lr: 0.1}", ["~optimizer"], ADAMW),
    ],
)
def test_optimizer(project: Project, written: str, overrides: list[str], expected: Any) -> None:
    project.write(written)
    assert load("optimizer", "run.yaml", *overrides) == expected


@pytest.mark.parametrize(
    ("written", "overrides", "expected"),
    [
        ("{}", ["loss.reduction=sum"], {"type": "cross_entropy", "reduction": "sum"}),
        ("loss: {reduction: sum}", [], {"type": "cross_entropy", "reduction": "sum"}),
        ("loss: mse_loss", ["loss.reduction=sum"], {"type": "mse_loss", "reduction": "sum"}),
        ("loss: {type: mse_loss}", ["loss.reduction=sum"], {"type": "mse_loss", "reduction": "sum"}),
        ("loss: {reduction: sum}", ["loss=mse_loss"], "mse_loss"),
        ("loss: null", [], None),
    ],
)
def test_loss(project: Project, written: str, overrides: list[str], expected: Any) -> None:
    project.write(written)
    assert load("loss", "run.yaml", *overrides) == expected


def test_sections_of_all_layers_are_partial(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.write("[tool.hookbus]\noptimizer.eps = 1e-6\nloss = 'mse_loss'\n", "pyproject.toml")
    monkeypatch.setenv("HOOKBUS_OPTIMIZER__LR", "0.5")
    project.write("loss: {reduction: sum}\nload_from: a.pth\nscheduler: {type: StepLR}\n", "base.yaml")
    project.write("defaults: [base.yaml]\nload_from: {weights: averaged}\nscheduler: {step_size: 3}\n")
    assert load("optimizer") == {**ADAMW, "eps": 1e-6, "lr": 0.5}
    assert load("loss") == {"type": "mse_loss", "reduction": "sum"}
    assert load("load_from") == {"path": "a.pth", "weights": "averaged"}
    assert load("load_from", "run.yaml", "load_from=b.pth", "load_from.strict=false") == {
        "path": "b.pth", "strict": False
    }  # fmt: skip
    assert load("scheduler") == {"type": "StepLR", "step_size": 3}


def test_section_without_a_default_requires_a_type(project: Project) -> None:
    project.write("{}")
    with pytest.raises(ConfigError, match=r"command line: scheduler\.T_max=3: scheduler\.type: required, but missing"):
        load_config("run.yaml", ["scheduler.T_max=3"])


def test_error_in_an_expanded_section_has_its_place(project: Project) -> None:
    project.write("load_from: 'a.pth'\nloss: mse_loss\n")
    with pytest.raises(ConfigError) as caught:
        load_config("run.yaml", ["load_from.weights=avg", "loss.type=3"])
    assert {problem.partition(", got")[0] for problem in caught.value.problems} == {
        "command line: load_from.weights=avg: load_from.weights: should be 'raw' or 'averaged'",
        "command line: loss.type=3: loss.type: should be a valid string",
    }
