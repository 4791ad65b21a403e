"""Which settings hold."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from hookbus.errors import ConfigError
from hookbus_eval import DistEvalHook, EvalConfig, EvalHook


def test_the_defaults() -> None:
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
        "before_train": False,
    }


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"interval": 0}, "interval: .*0"),
        ({"interval": -3}, "interval: .*-3"),
        ({"interval": 0.98}, "interval: .*0.98"),
        ({"start": -1}, "start: .*-1"),
        ({"metric": "0_hmean-iou:recall"}, "rule: '0_hmean-iou:recall' does not tell"),
        ({"rule": "best"}, "rule: .*'best'"),
        ({"dynamic_intervals": [[3, 1], [3, 2]]}, "dynamic_intervals: .*milestones must ascend"),
        ({"dynamic_intervals": [[0, 1]]}, "dynamic_intervals: .*at least 1"),
        ({"dynamic_intervals": [[4, 0]]}, "dynamic_intervals: .*at least 1"),
        ({"test_fn": "no_such_module.judge"}, "test_fn: .*no_such_module"),
        ({"test_fn": "math.cos", "metrics": ["accuracy"]}, "test_fn measures by itself"),
        ({"metrics": ["acuracy"]}, "no built-in metric 'acuracy'. Did you mean 'accuracy'?"),
        ({"dataloader": None}, "dataloader: None is neither the name of a service, nor a loader, nor a mapping"),
        ({"dataloader": {"a": 3}}, "dataloader: 3 is neither the name"),
        ({"dataloader": ["val_loader", "test_loader"]}, "several data sets are a mapping of a name of yours to each"),
        ({"intervall": 3}, "intervall: unknown key. Did you mean 'interval'"),
    ],
)
def test_what_cannot_be_is_refused_by_its_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EvalHook(settings)


@pytest.mark.parametrize(
    ("settings", "metric"),
    [
        ({}, None),
        ({"interval": 3}, None),
        ({"save_best": True}, "accuracy"),
        ({"metric": "val_loss"}, "val_loss"),
        ({"metric": "recall", "rule": "greater"}, "recall"),
        ({"save_best": False, "metric": "recall"}, None),
    ],
)
def test_the_best_is_asked_for_where_something_was_said_about_it(settings: dict[str, Any], metric: str | None) -> None:
    assert EvalConfig(**settings).best_metric == metric


@pytest.mark.parametrize(
    ("settings", "brings"),
    [
        ({}, False),
        ({"dataloader": "val_loader", "efficient_test": True}, False),
        ({"dataloader": "test_loader"}, True),
        ({"dataloader": torch.zeros(2, 2)}, True),
        ({"dataloader": {"a": "val_loader"}}, True),
        ({"metrics": ["accuracy"]}, True),
        ({"test_fn": functional.l1_loss}, True),
        ({"test_fn": "torch.nn.functional.l1_loss"}, True),
    ],
)
def test_the_runs_own_validation_is_replaced_where_there_is_a_reason(settings: dict[str, Any], brings: bool) -> None:
    hook = EvalHook(settings)
    assert hook.config.brings_validation is brings
    assert (hook.validates_with is not None) is brings


def test_a_function_may_be_given_by_its_path() -> None:
    assert EvalHook({"test_fn": "torch.nn.functional.l1_loss"}).config.test_fn is functional.l1_loss


def test_a_function_beside_the_run_file_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A console script does not look there by itself."""
    (tmp_path / "judges_of_this_test.py").write_text("def judge(model, loader):\n    return {'score': 1.0}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    function = EvalConfig(test_fn="judges_of_this_test:judge").test_fn
    assert function is not None
    assert function(None, None) == {"score": 1.0}


def test_the_distributed_one_takes_the_same_settings() -> None:
    settings = {"interval": 2, "start": 1, "metric": "loss", "dynamic_intervals": [[4, 1]]}
    assert DistEvalHook(settings).config == EvalHook(settings).config
