"""Best results: comparison and file names of metrics, and export of the weights as safetensors."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from hookbus import Hook, HookBus
from hookbus._run.run import Run
from hookbus.checkpoint.state import read_checkpoint
from hookbus.errors import CheckpointError, HookWarning
from hookbus.testing import Training, fake_training
from hookbus_checkpoint import CheckpointHook
from hookbus_checkpoint.file_names import get_file_stem
from hookbus_checkpoint.ranking import is_better

NAME = "checkpoints/model.safetensors"


def train(directory: Path, *hooks: Hook, scores: Mapping[int, float] | None = None, **options: Any) -> Training:
    results = None if scores is None else lambda epoch: {"accuracy": scores[epoch], "loss": -scores[epoch]}
    return fake_training(hooks, epochs=3, scores=results, work_dir=directory, **options)


def load_metadata(path: Path) -> dict[str, str]:
    with safe_open(path, "pt") as file:
        metadata: dict[str, str] = file.metadata()
    return metadata


def is_identical(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return set(one) == set(other) and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("mode", [False, True])
def test_best_weights_are_published_with_metadata(tmp_path: Path, mode: bool) -> None:
    training = train(tmp_path, CheckpointHook(publish=True, async_save=mode), scores={1: 0.5, 2: 0.9, 3: 0.7})

    published = load_file(tmp_path / NAME)
    assert is_identical(published, read_checkpoint(tmp_path / "checkpoints/epoch_2.pth")["state_dict"])
    assert not is_identical(published, training.model.state_dict())
    assert load_metadata(tmp_path / NAME) == {"metric": "val/accuracy", "value": "0.9", "step": "6"}


def test_final_weights_are_published_without_a_best_result(tmp_path: Path) -> None:
    training = train(tmp_path, CheckpointHook(publish=True))

    assert is_identical(load_file(tmp_path / NAME), training.model.state_dict())
    assert load_metadata(tmp_path / NAME) == {"step": "9"}


class BestRequester(Hook):
    """Hook with an early priority that requests the best of another metric."""

    priority = 1

    @property
    def best_metrics(self) -> Mapping[str, Any]:
        return {"accuracy": None}


def test_configured_metric_takes_precedence_over_those_of_other_hooks(tmp_path: Path) -> None:
    train(tmp_path, BestRequester(), CheckpointHook(publish=True, best_metric="loss"), scores={1: 0.5, 2: 0.4, 3: 0.3})
    assert load_metadata(tmp_path / NAME)["metric"] == "val/loss"


class AveragingHook(Hook):
    """Provider of averaged weights that are zero."""

    def before_run(self, run: Run) -> None:
        assert run.model is not None
        self.mean = {name: torch.zeros_like(weight) for name, weight in run.model.named_parameters()}
        run.weights.provide(self)

    def raw(self) -> None:
        return None

    def averaged(self) -> dict[str, Tensor]:
        return self.mean

    def applied(self) -> Any:
        return nullcontext()

    def wait(self) -> None:
        pass


@pytest.mark.parametrize("scores", [None, {1: 0.5, 2: 0.9, 3: 0.7}])
def test_averaged_weights_are_published_if_a_hook_averages(tmp_path: Path, scores: Any) -> None:
    averaging = AveragingHook()
    train(tmp_path, averaging, CheckpointHook(publish=True), scores=scores)

    assert is_identical(load_file(tmp_path / NAME), averaging.mean)


class Stopper(Hook):
    def __init__(self, outcome: Any) -> None:
        super().__init__()
        self.outcome = outcome

    def after_train_iter(self, run: Run) -> None:
        run.request_stop("enough", outcome=self.outcome)


@pytest.mark.parametrize(("outcome", "is_published"), [("stopped", True), ("preempted", False), ("interrupted", False)])
def test_incomplete_training_publishes_nothing(tmp_path: Path, outcome: Any, is_published: bool) -> None:
    with contextlib.suppress(KeyboardInterrupt):
        train(tmp_path, CheckpointHook(publish=True), Stopper(outcome))
    assert (tmp_path / NAME).exists() == is_published


class TestErrors:
    @pytest.fixture(autouse=True)
    def _fill_disk(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real = os.replace

        def replace(source: Any, target: Any) -> None:
            if Path(target).name == "model.safetensors":
                raise OSError(28, "No space left on device")
            real(source, target)

        monkeypatch.setattr(os, "replace", replace)

    def test_failed_publish_ends_the_run(self, tmp_path: Path) -> None:
        with pytest.raises(
            CheckpointError, match=r"model.safetensors could not be written: .* [\d,]+ bytes are required"
        ):
            train(tmp_path, CheckpointHook(publish=True))

    def test_failed_publish_is_a_warning_with_on_save_error_warn(self, tmp_path: Path) -> None:
        with pytest.warns(HookWarning, match="model.safetensors could not be written"):
            run = train(tmp_path, CheckpointHook(publish=True, on_save_error="warn")).run
        assert run.outcome == "finished"


def test_tied_weights_are_duplicated_and_extra_state_is_omitted(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
            self.other.weight = self.one.weight

        def get_extra_state(self) -> Any:
            return {"note": "text"}

        def set_extra_state(self, state: Any) -> None:
            pass

    model = Tied()
    with HookBus([CheckpointHook(publish=True)]).run(model=model, epochs=1, work_dir=tmp_path):
        pass

    published = load_file(tmp_path / NAME)
    assert set(published) == {"one.weight", "other.weight"}
    assert torch.equal(published["other.weight"], model.one.weight)


def test_comparison_is_strict() -> None:
    assert is_better(0.9, 0.8, "greater")
    assert not is_better(0.8, 0.8, "greater")
    assert is_better(0.4, 0.5, "less")
    assert not is_better(0.5, 0.5, "less")
    assert is_better(0.1, None, "greater")


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("best", [None, 0.5])
def test_nonfinite_score_is_never_better(score: float, best: float | None) -> None:
    assert not is_better(score, best, "greater")
    assert not is_better(score, best, "less")


@pytest.mark.parametrize(
    ("metric", "stem"),
    [
        ("accuracy", "accuracy"),
        ("val/acc", "val_acc"),
        ("../../etc/passwd", "etc_passwd"),
        ("acc,top1: a b", "acc_top1_a_b"),
        ("...", "metric"),
        ("Genauigkeit äöü", "Genauigkeit_äöü"),
        ("точность", "точность"),
        ("val/准确率", "val_准确率"),
        ("re\u0301ussite", "r\u00e9ussite"),
        ("a" * 300, "a" * 180),
        ("率" * 100, "率" * 60),
        ("acc\x00\n\u2028\u202e1", "acc_1"),
    ],
)
def test_file_stem_of_a_metric_contains_no_path(metric: str, stem: str) -> None:
    assert get_file_stem(metric) == stem
