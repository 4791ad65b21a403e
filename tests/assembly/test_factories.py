"""Finding what the names of a run file stand for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch.nn import functional

from hookbus.assembly.factories import Factories, keywords_of
from hookbus.config import load_config

if TYPE_CHECKING:
    from tests.conftest import Project

BASE = """
    model: {type: "parts:net"}
    dataset: {type: "parts:points"}
    training: {epochs: 1}
"""


def found(project: Project, *overrides: str) -> Factories:
    return Factories(load_config(project.write(BASE), overrides))


def problem(project: Project, override: str) -> str:
    (only,) = found(project, override).problems
    return only.removeprefix(f"command line: {override}: ")


class TestNames:
    def test_names_of_torch_and_paths_lead_to_what_they_name(self, project: Project) -> None:
        factories = found(project, "optimizer={type: SGD, lr: 1}", "scheduler.type=StepLR", "loss=mse_loss")
        assert factories.problems == []
        assert factories.optimizer is torch.optim.SGD
        assert factories.scheduler is torch.optim.lr_scheduler.StepLR
        assert factories.loss is functional.mse_loss
        assert (factories.model.__name__, factories.dataset.__name__) == ("net", "points")  # type: ignore[union-attr]

    @pytest.mark.parametrize("path", ["torch.nn:CrossEntropyLoss", "torch.nn.CrossEntropyLoss"])
    def test_a_loss_may_be_a_path(self, project: Project, path: str) -> None:
        assert found(project, f"loss={path}").loss is torch.nn.CrossEntropyLoss
        assert found(project, f"loss={{type: '{path}', reduction: sum}}").loss is torch.nn.CrossEntropyLoss

    def test_a_loss_is_not_needed(self, project: Project) -> None:
        assert found(project, "loss=").loss is None

    @pytest.mark.parametrize(
        ("override", "message"),
        [
            ("model.type=none_1:net", "model.type: 'none_1:net' cannot be imported: ModuleNotFoundError: "),
            ("model.type=parts:nett", "model.type: 'parts:nett' cannot be imported: parts has no 'nett'. Did you mean"),
            ("model.widht=3", "model.widht: unknown key. Did you mean 'width'?"),
            ("dataset.cuont=3", "dataset.cuont: unknown key. Did you mean 'count'?"),
            ("dataset.batchsize=3", "dataset.batchsize: unknown key. Did you mean 'batch_size'?"),
            ("optimizer={type: SGD, larning_rate: 1}", "optimizer.larning_rate: unknown key. Available: "),
            ("optimizer.type=Adm", "optimizer.type: 'Adm' is not an optimizer of torch.optim. Did you mean 'Adam'"),
            ("optimizer.type=_functional", "optimizer.type: '_functional' is not an optimizer of torch.optim."),
            ("scheduler.type=StepLr", "scheduler.type: 'StepLr' is not a scheduler of torch.optim.lr_scheduler."),
            ("loss=cros_entropy", "loss: 'cros_entropy' is not a loss of torch.nn.functional. Did you mean 'cross"),
            ("loss=xyzzy", "loss: 'xyzzy' is not a loss of torch.nn.functional. One of your own is named "),
            ("loss=none_1:loss", "loss: 'none_1:loss' cannot be imported: ModuleNotFoundError: "),
            ("loss={type: mse_loss, reducton: sum}", "loss.reducton: unknown key. Did you mean 'reduction'"),
            (
                "metrics=[accuracy, accuracy]",
                "metrics.1: two of them are called 'accuracy': give a mapping with names of your own.",
            ),
            ("metrics=['pathlib:Path']", "metrics.0: PosixPath('.') is neither a name, a function nor an object with"),
            ("metrics=[nowhere.metric]", "metrics.0: 'nowhere.metric' cannot be imported: "),
            ("metrics={f1: nowhere.metric}", "metrics.f1: 'nowhere.metric' cannot be imported: "),
            ("device=gpu", "device: 'gpu' cannot be used here: "),
            ("device=cuda:9999", "device: 'cuda:9999' cannot be used here: "),
        ],
    )  # fmt: skip
    def test_a_name_that_leads_nowhere_is_told(self, project: Project, override: str, message: str) -> None:
        assert problem(project, override).startswith(message)

    def test_a_path_to_what_cannot_be_called_is_told(self, project: Project) -> None:
        assert problem(project, "model.type=math:pi") == (
            "model.type: it names 3.141592653589793, which cannot be called."
        )

    @pytest.mark.parametrize(("section", "kind"), [("model", "model"), ("dataset", "data set")])
    def test_a_type_that_no_package_offers_is_told(self, project: Project, section: str, kind: str) -> None:
        message = problem(project, f"{section}.type=xyzzy")
        assert message.startswith(f"{section}.type: No installed package offers the {kind} 'xyzzy'.")
        assert message.endswith("one of your own is named by its path, my_module:xyzzy.")


def test_all_are_told_and_nothing_is_built(project: Project) -> None:
    project.write("raise SystemExit('never')\n", "bomb.py")
    factories = found(project, "model.type=bomb:net", "loss=nope", "hooks=['parts:MisspeltHook']", "device=gpu")
    assert [problem.split(": ")[2] for problem in factories.problems] == ["model.type", "loss", "hooks.0", "device"]
    assert "SystemExit: never" in factories.problems[0]


def test_missing_sections_are_told(project: Project) -> None:
    factories = Factories(load_config(project.write("seed: 1\n")))
    assert factories.problems == [
        f"run.yaml:1:1: a training needs the section {name}, which is not there."
        for name in ("model", "dataset", "training")
    ]


class TestScores:
    def test_accuracy_goes_with_the_default_loss(self, project: Project) -> None:
        assert list(found(project).scores) == ["accuracy"]
        assert list(found(project, "loss=mse_loss").scores) == []

    def test_the_file_may_say_otherwise(self, project: Project) -> None:
        assert list(found(project, "metrics=[]").scores) == []
        assert list(found(project, "metrics={top1: accuracy}").scores) == ["top1"]


class TestKeywords:
    def test_they_are_those_of_the_signature(self) -> None:
        def factory(first: int, *, second: int = 2) -> None: ...

        assert list(keywords_of(factory)) == ["first", "second"]
        assert list(keywords_of(lambda one, **rest: None)) == ["one", "**"]

    def test_what_is_written_in_c_takes_anything(self) -> None:
        assert list(keywords_of(torch.relu)) == ["**"]
