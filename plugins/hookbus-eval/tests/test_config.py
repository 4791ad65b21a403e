"""Validation of the configuration of the evaluation hooks."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from hookbus.errors import ConfigError
from hookbus_eval import DistEvalHook, EvalConfig, EvalHook


def test_config_has_the_documented_defaults() -> None:
    inherited = set(EvalConfig.__base__.model_fields)  # type: ignore[union-attr]
    assert EvalConfig().model_dump(exclude=inherited) == {
        "dataloader": "val_loader",
        "interval": 1,
        "by_epoch": True,
        "start": 0,
        "save_best": True,
        "metric": "accuracy",
        "rule": None,
        "metrics": [],
        "efficient_test": False,
        "test_fn": None,
        "dynamic_intervals": [],
        "at_end": True,
        "before_train": False,
    }


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"interval": 0}, "interval: .*0"),
        ({"interval": -3}, "interval: .*-3"),
        ({"interval": 0.98}, "interval: .*0.98"),
        ({"start": -1}, "start: .*-1"),
        ({"metric": "0_hmean-iou:recall"}, "rule: .*'0_hmean-iou:recall' .*Set `rule`"),
        ({"rule": "best"}, "rule: .*'best'"),
        ({"dynamic_intervals": [[3, 1], [3, 2]]}, "dynamic_intervals: .*milestones must be in ascending order"),
        ({"dynamic_intervals": [[0, 1]]}, "dynamic_intervals: .*at least 1"),
        ({"dynamic_intervals": [[4, 0]]}, "dynamic_intervals: .*at least 1"),
        ({"test_fn": "no_such_module.evaluate"}, "test_fn: .*no_such_module"),
        ({"test_fn": "math.cos", "metrics": ["accuracy"]}, "metrics: has no effect together with `test_fn`"),
        ({"metrics": ["acuracy"]}, "metrics: .*'acuracy'. Did you mean 'accuracy'?"),
        ({"dataloader": None}, "dataloader: must be a data loader, got None. Set the name of a service"),
        ({"dataloader": {"a": 3}}, "dataloader: must be a data loader, got 3"),
        ({"dataloader": ["val_loader", "test_loader"]}, "Set a mapping of name to loader for multiple datasets"),
        ({"intervall": 3}, "intervall: unknown key. Did you mean 'interval'"),
    ],
)
def test_config_names_the_invalid_setting(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EvalHook(settings)


@pytest.mark.parametrize(
    ("settings", "best", "required"),
    [
        ({}, {"accuracy": None}, []),
        ({"save_best": True, "metric": "accuracy"}, {"accuracy": None}, []),
        ({"rule": "greater"}, {"accuracy": "greater"}, []),
        ({"metric": "val_loss"}, {"val_loss": None}, ["val_loss"]),
        ({"metric": "recall", "rule": "greater"}, {"recall": "greater"}, ["recall"]),
        ({"save_best": False}, {}, []),
    ],
)
def test_every_metric_but_the_default_one_is_required(
    settings: dict[str, Any], best: dict[str, Any], required: list[str]
) -> None:
    hook = EvalHook(settings)
    assert (hook.best_metrics, hook.required_metrics) == (best, required)


@pytest.mark.parametrize(
    ("settings", "replaced"),
    [
        ({}, False),
        ({"dataloader": "val_loader"}, False),
        ({"dataloader": "test_loader"}, True),
        ({"dataloader": torch.zeros(2, 2)}, True),
        ({"dataloader": {"a": "val_loader"}}, True),
        ({"metrics": ["accuracy"]}, True),
        ({"test_fn": functional.l1_loss}, True),
        ({"test_fn": "torch.nn.functional.l1_loss"}, True),
    ],
)
def test_validation_of_the_run_is_replaced_only_if_configured(settings: dict[str, Any], replaced: bool) -> None:
    hook = EvalHook(settings)
    assert hook.config.replaces_validation is replaced
    assert (hook.validation_fn is not None) is replaced


def test_test_fn_may_be_an_import_string() -> None:
    assert EvalHook({"test_fn": "torch.nn.functional.l1_loss"}).config.test_fn is functional.l1_loss


def test_test_fn_is_imported_from_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`sys.path` of a console script does not contain the current directory."""
    (tmp_path / "test_fn_module.py").write_text("def evaluate(model, loader):\n    return {'score': 1.0}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    function = EvalConfig(test_fn="test_fn_module:evaluate").test_fn
    assert function is not None
    assert function(None, None) == {"score": 1.0}


def test_distributed_hook_has_the_same_settings() -> None:
    settings = {"interval": 2, "start": 1, "metric": "loss", "dynamic_intervals": [[4, 1]]}
    assert DistEvalHook(settings).config == EvalHook(settings).config
