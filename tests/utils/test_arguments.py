"""Tests of the validation of constructor arguments."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hookbus import HookBus, Trainer
from hookbus._utils import arguments
from hookbus.errors import ConfigError

STEP_LR = torch.optim.lr_scheduler.StepLR


def train(**arguments: Any) -> None:
    model = nn.Linear(1, 1)
    Trainer(
        model,
        arguments.pop("optimizer", None) or torch.optim.SGD(model.parameters()),
        **{"epochs": 1, "work_dir": None, "default_hooks": False, **arguments},
    )


def run(**arguments: Any) -> None:
    with HookBus().run(**arguments):
        pass


@pytest.mark.parametrize("name", ["overwrite", "default_hooks", "validate_first", "load_strict"])
def test_string_is_not_a_bool(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}: should be True or False, got 'no'"):
        train(**{name: "no"})


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"load_weights": "avg"}, "load_weights: should be one of raw, averaged, got 'avg'."),
        ({"loss_fn": "mse"}, "loss_fn: should be callable, got 'mse'. Pass a function such as torch.nn.functional"),
        ({"loss_fn": nn.MSELoss}, "loss_fn: should be an instance, got the class MSELoss. Pass MSELoss(...)."),
        ({"step_fn": 3}, "step_fn: should be callable, got 3. Pass a function of model and batch."),
        ({"scheduler": "StepLR"}, "scheduler: should have a method step(), got 'StepLR'."),
        ({"scheduler": STEP_LR}, "scheduler: should be an instance, got the class StepLR. Pass StepLR(...)."),
        ({"optimizer": "SGD"}, "optimizer: should be an optimizer or a function of the parameters, got 'SGD'."),
        (
            {"test_loader": {"a": 3}},
            "test_loader.a: should be iterable in every epoch, got 3. Pass a DataLoader or another",
        ),
        ({"train_loader": "data"}, "train_loader: should be iterable in every epoch, got 'data'"),
        ({"config": 3}, "config: should be a mapping of names to values, such as vars(args), got 3."),
        ({"load_from": 3}, "load_from: should be a path, got 3."),
        ({"clip_grad_norm": "1"}, "clip_grad_norm: expected a number > 0, got '1'."),
    ],
)
def test_trainer_rejects_invalid_argument(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        train(**arguments)
    assert str(caught.value).startswith(problem)


@pytest.mark.parametrize("begin", [train, run])
@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"seed": -1}, "seed: should be an integer from 0 to 2**63 - 1, got -1."),
        ({"seed": 1.5}, "seed: should be an integer from 0 to 2**63 - 1, got 1.5"),
        ({"seed": True}, "seed: should be an integer from 0 to 2**63 - 1, got True"),
        ({"work_dir": 3}, "work_dir: should be a path, got 3."),
        ({"epochs": "3"}, "epochs: expected an integer >= 0, got '3'."),
        ({"epochs": None, "iterations": -1}, "iterations: expected an integer >= 0, got -1."),
    ],
)
def test_custom_loop_rejects_invalid_argument(
    begin: Callable[..., None], arguments: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        begin(**arguments)
    assert str(caught.value).startswith(problem)


@pytest.mark.parametrize("name", ["fresh", "overwrite", "counts_steps"])
def test_flags_of_a_custom_loop_are_bools(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}: should be True or False, got 1"):
        run(**{name: 1})


def test_all_invalid_arguments_are_listed() -> None:
    with pytest.raises(ConfigError) as caught:
        train(seed="a", overwrite="no", loss_fn=3)
    assert len(str(caught.value).splitlines()) == 3


def test_valid_arguments_are_accepted() -> None:
    loaders: list[Any] = [[1], {"a": [1], "b": iter([1])}, range(3), None]
    assert {arguments.check_loader("x", loader) for loader in loaders} == {""}
    assert (
        arguments.check_path("x", Path("a")) == arguments.check_seed("x", 0) == arguments.check_bool("x", False) == ""
    )
    assert arguments.check_callable("x", nn.MSELoss(), "") == arguments.check_mapping("x", {"a": 1}) == ""
