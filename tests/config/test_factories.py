"""Tests of the lookup of the names in a run file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch.nn import functional

from hookbus._config.factories import Factories, accepted_keywords
from hookbus._config.load import load_config

if TYPE_CHECKING:
    from tests.conftest import Project

BASE = """
    model: {type: "parts:net"}
    dataset: {type: "parts:points"}
    training: {epochs: 1}
"""


def make_factories(project: Project, *overrides: str) -> Factories:
    return Factories(load_config(project.write(BASE), overrides))


def get_error(project: Project, override: str) -> str:
    (only,) = make_factories(project, override).problems
    return only.removeprefix(f"command line: {override}: ")


class TestNames:
    def test_torch_names_and_import_strings_are_resolved(self, project: Project) -> None:
        factories = make_factories(project, "optimizer={type: SGD, lr: 1}", "scheduler.type=StepLR", "loss=mse_loss")
        assert factories.problems == []
        assert factories.optimizer is torch.optim.SGD
        assert factories.scheduler is torch.optim.lr_scheduler.StepLR
        assert factories.loss is functional.mse_loss
        assert (factories.model.__name__, factories.dataset.__name__) == ("net", "points")  # type: ignore[union-attr]

    @pytest.mark.parametrize("path", ["torch.nn:CrossEntropyLoss", "torch.nn.CrossEntropyLoss"])
    def test_loss_may_be_an_import_string(self, project: Project, path: str) -> None:
        assert make_factories(project, f"loss={path}").loss is torch.nn.CrossEntropyLoss
        assert make_factories(project, f"loss={{type: '{path}', reduction: sum}}").loss is torch.nn.CrossEntropyLoss

    def test_loss_is_optional(self, project: Project) -> None:
        assert make_factories(project, "loss=").loss is None

    @pytest.mark.parametrize(
        ("override", "message"),
        [
            ("model.type=none_1:net", "model.type: 'none_1:net' cannot be imported: ModuleNotFoundError: "),
            (
                "model.type=parts:nett",
                "model.type: 'parts:nett' cannot be imported: parts has no attribute 'nett'. Did you mean",
            ),
            ("model.widht=3", "model.widht: unknown key. Did you mean 'width'?"),
            ("dataset.cuont=3", "dataset.cuont: unknown key. Did you mean 'count'?"),
            ("dataset.batchsize=3", "dataset.batchsize: unknown key. Did you mean 'batch_size'?"),
            ("optimizer={type: SGD, larning_rate: 1}", "optimizer.larning_rate: unknown key. Available: "),
            ("optimizer.type=Adm", "optimizer.type: 'Adm' is not an optimizer of torch.optim. Did you mean 'Adam'"),
            ("optimizer.type=_functional", "optimizer.type: '_functional' is not an optimizer of torch.optim."),
            ("scheduler.type=StepLr", "scheduler.type: 'StepLr' is not a scheduler of torch.optim.lr_scheduler."),
            ("loss=cros_entropy", "loss: 'cros_entropy' is not a loss of torch.nn.functional. Did you mean 'cross"),
            ("loss=xyzzy", "loss: 'xyzzy' is not a loss of torch.nn.functional. For your own, use an import string"),
            ("loss=none_1:loss", "loss: 'none_1:loss' cannot be imported: ModuleNotFoundError: "),
            ("loss={type: mse_loss, reducton: sum}", "loss.reducton: unknown key. Did you mean 'reduction'"),
            (
                "metrics=[accuracy, accuracy]",
                "metrics.1: two metrics are named 'accuracy'. Use a mapping with unique names.",
            ),
            ("metrics=['pathlib:Path']", "metrics.0: expected a name, a function or an object with update, compute"),
            ("metrics=[nowhere.metric]", "metrics.0: 'nowhere.metric' cannot be imported: "),
            ("metrics={f1: nowhere.metric}", "metrics.f1: 'nowhere.metric' cannot be imported: "),
            ("device=gpu", "device: 'gpu' cannot be used: "),
            ("device=cuda:9999", "device: 'cuda:9999' cannot be used: "),
        ],
    )  # fmt: skip
    def test_unknown_name_is_an_error(self, project: Project, override: str, message: str) -> None:
        assert get_error(project, override).startswith(message)

    def test_object_that_is_not_callable_is_an_error(self, project: Project) -> None:
        assert get_error(project, "model.type=math:pi") == (
            "model.type: should refer to a callable, got 3.141592653589793."
        )

    @pytest.mark.parametrize(("section", "kind"), [("model", "model"), ("dataset", "dataset")])
    def test_unpublished_type_is_an_error(self, project: Project, section: str, kind: str) -> None:
        message = get_error(project, f"{section}.type=xyzzy")
        assert message.startswith(f"{section}.type: No installed package publishes the {kind} 'xyzzy'.")
        assert message.endswith("use an import string such as my_module:xyzzy.")


def test_all_errors_are_listed_and_nothing_is_built(project: Project) -> None:
    project.write("raise SystemExit('never')\n", "bomb.py")
    factories = make_factories(
        project, "model.type=bomb:net", "loss=nope", "hooks=['parts:MisspelledHook']", "device=gpu"
    )
    assert [problem.split(": ")[2] for problem in factories.problems] == ["model.type", "loss", "hooks.0", "device"]
    assert "SystemExit: never" in factories.problems[0]


def test_missing_sections_are_an_error(project: Project) -> None:
    factories = Factories(load_config(project.write("seed: 1\n")))
    assert factories.problems == [
        f"run.yaml:1:1: the section {name} is missing. Add it to the run file."
        for name in ("model", "dataset", "training")
    ]


class TestMetrics:
    def test_default_loss_adds_accuracy(self, project: Project) -> None:
        assert list(make_factories(project).metrics) == ["accuracy"]
        assert list(make_factories(project, "loss=mse_loss").metrics) == []

    def test_metrics_of_the_file_replace_the_default(self, project: Project) -> None:
        assert list(make_factories(project, "metrics=[]").metrics) == []
        assert list(make_factories(project, "metrics={top1: accuracy}").metrics) == ["top1"]


class TestKeywords:
    def test_keywords_are_those_of_the_signature(self) -> None:
        def factory(first: int, *, second: int = 2) -> None: ...

        assert list(accepted_keywords(factory)) == ["first", "second"]
        assert list(accepted_keywords(lambda one, **rest: None)) == ["one", "**"]

    def test_builtin_accepts_any_keyword(self) -> None:
        assert list(accepted_keywords(torch.relu)) == ["**"]
