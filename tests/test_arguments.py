"""What users hand over by mistake is told by its name, before anything is done."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hookbus import HookBus, Trainer, _arguments
from hookbus.errors import ConfigError

STEP_LR = torch.optim.lr_scheduler.StepLR


def train(**given: Any) -> None:
    model = nn.Linear(1, 1)
    Trainer(
        model,
        given.pop("optimizer", None) or torch.optim.SGD(model.parameters()),
        **{"epochs": 1, "work_dir": None, "default_hooks": False, **given},
    )


def run(**given: Any) -> None:
    with HookBus().run(**given):
        pass


@pytest.mark.parametrize("name", ["overwrite", "default_hooks", "validate_first", "load_strict"])
def test_a_word_is_no_truth_value(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}: 'no' is neither True nor False"):
        train(**{name: "no"})


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"load_weights": "avg"}, "load_weights: 'avg' is none of raw, averaged."),
        ({"loss_fn": "mse"}, "loss_fn: 'mse' cannot be called: give a function such as torch.nn.functional"),
        ({"loss_fn": nn.MSELoss}, "loss_fn: MSELoss is a class: give an instance of it, MSELoss(...)."),
        ({"step_fn": 3}, "step_fn: 3 cannot be called: give a function of model and batch."),
        ({"scheduler": "StepLR"}, "scheduler: 'StepLR' has no step()."),
        ({"scheduler": STEP_LR}, "scheduler: StepLR is a class: give an instance of it, StepLR(...)."),
        ({"optimizer": "SGD"}, "optimizer: 'SGD' is neither an optimizer nor a function of the parameters."),
        ({"test_loader": {"a": 3}}, "test_loader.a: 3 gives no batches: give a DataLoader, or anything"),
        ({"train_loader": "data"}, "train_loader: 'data' gives no batches"),
        ({"config": 3}, "config: 3 is no mapping of names to values, such as vars(args)."),
        ({"load_from": 3}, "load_from: 3 is no path."),
        ({"clip_grad_norm": "1"}, "clip_grad_norm: '1' is not more than 0"),
    ],
)
def test_a_trainer_says_what_it_cannot_use(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        train(**given)
    assert str(caught.value).startswith(problem)


@pytest.mark.parametrize("begin", [train, run])
@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"seed": -1}, "seed: -1 is not a whole number from 0 on, below 2**63."),
        ({"seed": 1.5}, "seed: 1.5 is not a whole number"),
        ({"seed": True}, "seed: True is not a whole number"),
        ({"work_dir": 3}, "work_dir: 3 is no path."),
        ({"epochs": "3"}, "epochs: '3' is not a whole number of at least 0."),
        ({"epochs": None, "iterations": -1}, "iterations: -1 is not a whole number of at least 0."),
    ],
)
def test_so_does_a_loop_of_ones_own(begin: Callable[..., None], given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        begin(**given)
    assert str(caught.value).startswith(problem)


@pytest.mark.parametrize("name", ["fresh", "overwrite", "counts_steps"])
def test_switches_of_a_loop_are_truth_values(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}: 1 is neither True nor False"):
        run(**{name: 1})


def test_all_of_it_is_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        train(seed="a", overwrite="no", loss_fn=3)
    assert len(str(caught.value).splitlines()) == 3


def test_what_can_be_used_is_used() -> None:
    loaders: list[Any] = [[1], {"a": [1], "b": iter([1])}, range(3), None]
    assert {_arguments.batches("x", each) for each in loaders} == {""}
    assert _arguments.path("x", Path("a")) == _arguments.seed("x", 0) == _arguments.truth("x", False) == ""
    assert _arguments.function("x", nn.MSELoss(), "") == _arguments.settings("x", {"a": 1}) == ""
