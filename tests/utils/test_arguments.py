"""Tests of the validation of constructor arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hookbus import HookBus, Trainer, load_config
from hookbus._utils import arguments
from hookbus._utils.arguments import check_count, combine_errors, replace_message
from hookbus._utils.known_keys import FRAMEWORK_KEYS, find_equivalent
from hookbus.errors import (
    ArgumentError,
    CheckpointCorruptedError,
    CheckpointError,
    ConfigError,
    HookbusError,
    LoopError,
    MetricError,
    RejectedRecordsError,
    WorkDirError,
)

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


class FieldsError(CheckpointError):
    """Error of a package, with a constructor of its own."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")


def test_single_error_is_returned_unchanged() -> None:
    error = FieldsError("a.pth", "gone")
    assert combine_errors([error]) is error


def test_problems_of_config_errors_are_joined() -> None:
    combined = combine_errors([ConfigError(["a", "b"]), ConfigError(["c"])])
    assert isinstance(combined, ConfigError)
    assert combined.problems == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("errors", "common"),
    [
        ([LoopError("a"), LoopError("b")], LoopError),
        ([CheckpointError("a"), CheckpointCorruptedError("b")], CheckpointError),
        ([CheckpointCorruptedError("a"), CheckpointError("b")], CheckpointError),
        ([FieldsError("a", "x"), FieldsError("b", "x")], CheckpointError),
        ([MetricError("a"), MetricError("b")], MetricError),
        ([ConfigError(["a"]), WorkDirError("b")], HookbusError),
    ],
)
def test_combined_error_has_the_most_specific_common_type(
    errors: list[HookbusError], common: type[HookbusError]
) -> None:
    combined = combine_errors(errors)
    assert type(combined) is common
    assert str(combined).splitlines() == [str(error) for error in errors]


def test_combined_error_has_the_notes_of_its_parts() -> None:
    first, second = LoopError("a"), ConfigError(["b"])
    second.add_note("in hook 'x'")
    assert combine_errors([first, second]).__notes__ == ["in hook 'x'"]


@pytest.mark.parametrize(
    ("error", "expected"),
    [(LoopError("a"), LoopError), (FieldsError("a", "b"), CheckpointError)],
)
def test_error_with_another_message_keeps_its_type(error: HookbusError, expected: type[HookbusError]) -> None:
    replaced = replace_message(error, "hook 'x': a")
    assert (type(replaced), str(replaced)) == (expected, "hook 'x': a")


def test_error_with_further_arguments_becomes_its_base_class() -> None:
    replaced = replace_message(RejectedRecordsError("a", ["loss"]), "b")
    assert (type(replaced).__name__, str(replaced)) == ("HookError", "b")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: HookBus().run(epoch=3), "bus.run: unexpected keyword argument 'epoch'. Did you mean 'epochs'?"),
        (
            lambda: HookBus().run(max_epochs=3),
            "bus.run: unexpected keyword argument 'max_epochs'. Pass 'epochs', its name in hookbus.",
        ),
        (
            lambda: Trainer(nn.Linear(1, 1), criterion=None, epoch=3),
            "Trainer: unexpected keyword argument 'criterion'. Pass 'loss_fn', its name in hookbus.\n"
            "Trainer: unexpected keyword argument 'epoch'. Did you mean 'epochs'?",
        ),
        (
            lambda: Trainer(callbacks=[]),
            "Trainer: unexpected keyword argument 'callbacks'. Pass 'hooks', its name in hookbus.",
        ),
        (
            lambda: Trainer(nn.Linear(1, 1)).fit(max_epochs=3),
            "Trainer.fit: unexpected keyword argument 'max_epochs'. Pass 'epochs', its name in hookbus.",
        ),
        (
            lambda: Trainer(nn.Linear(1, 1), max_keep_ckpts=3),
            "Trainer: unexpected keyword argument 'max_keep_ckpts'. It is a setting of the hook 'checkpoint': pass it "
            "to that hook.",
        ),
        (
            lambda: Trainer(nn.Linear(1, 1), learning_rate=0.1),
            "Trainer: unexpected keyword argument 'learning_rate'. It is the argument 'lr' of the optimizer: pass it "
            "to `optimizer`.",
        ),
        (lambda: HookBus(hook=[]), "HookBus: unexpected keyword argument 'hook'. Did you mean 'hooks'?"),
        (
            lambda: load_config({}, override=[]),
            "load_config: unexpected keyword argument 'override'. Did you mean 'overrides'?",
        ),
        (
            lambda: Trainer.from_file("run.yaml", override=[]),
            "Trainer.from_file: unexpected keyword argument 'override'. Did you mean 'overrides'?",
        ),
    ],
)
def test_unknown_argument_names_the_accepted_one(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        call()
    assert str(caught.value) == message
    assert isinstance(caught.value, ConfigError)
    assert isinstance(caught.value, TypeError)


def test_signatures_are_unchanged() -> None:
    assert list(inspect.signature(HookBus).parameters) == ["hooks", "order"]
    assert "epochs" in inspect.signature(Trainer.fit).parameters
    assert next(iter(inspect.signature(Trainer).parameters)) == "model"


def test_equivalents_are_arguments_of_the_trainer() -> None:
    known = inspect.signature(Trainer).parameters
    missing = [name for name in FRAMEWORK_KEYS if find_equivalent(name, known) is None]
    assert missing == []
    assert find_equivalent("max_epochs", ["iterations"]) is None


@pytest.mark.parametrize(("value", "least"), [(1, 1), (0, 0), (7, 1), (10**30, 1)])
def test_sufficiently_large_integer_is_valid(value: int, least: int) -> None:
    assert check_count(value, "epochs", minimum=least) is None  # type: ignore[func-returns-value]


@pytest.mark.parametrize("value", [0, -1, True, 1.0, "1", None])
def test_invalid_value_raises_with_its_name(value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        check_count(value, "epochs")
    assert caught.value.problems == [f"epochs: expected an integer >= 1, got {value!r}."]
