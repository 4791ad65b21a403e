"""The weights alone: which of them, and that others can read them."""

from __future__ import annotations

import contextlib
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
from hookbus.errors import CheckpointError, HookWarning
from hookbus.run import Run
from hookbus.state import read_checkpoint
from hookbus.testing import Training, fake_training
from hookbus_checkpoint import CheckpointHook

NAME = "checkpoints/model.safetensors"


def train(directory: Path, *hooks: Hook, scores: Mapping[int, float] | None = None, **options: Any) -> Training:
    results = None if scores is None else lambda epoch: {"accuracy": scores[epoch], "loss": -scores[epoch]}
    return fake_training(hooks, epochs=3, scores=results, work_dir=directory, **options)


def about(path: Path) -> dict[str, str]:
    with safe_open(path, "pt") as file:
        found: dict[str, str] = file.metadata()
    return found


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return set(one) == set(other) and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("mode", [False, True])
def test_it_is_the_best_and_says_why(tmp_path: Path, mode: bool) -> None:
    training = train(tmp_path, CheckpointHook(publish=True, async_save=mode), scores={1: 0.5, 2: 0.9, 3: 0.7})

    published = load_file(tmp_path / NAME)
    assert same(published, read_checkpoint(tmp_path / "checkpoints/epoch_2.pth")["state_dict"])
    assert not same(published, training.model.state_dict())
    assert about(tmp_path / NAME) == {"metric": "val/accuracy", "value": "0.9", "step": "6"}


def test_without_a_best_it_is_the_end(tmp_path: Path) -> None:
    training = train(tmp_path, CheckpointHook(publish=True))

    assert same(load_file(tmp_path / NAME), training.model.state_dict())
    assert about(tmp_path / NAME) == {"step": "9"}


class Wants(Hook):
    """Is asked first, and wants the best of another metric."""

    priority = 1

    @property
    def keeps_best_of(self) -> Mapping[str, Any]:
        return {"accuracy": None}


def test_of_several_metrics_the_one_that_was_set_decides(tmp_path: Path) -> None:
    train(tmp_path, Wants(), CheckpointHook(publish=True, best_metric="loss"), scores={1: 0.5, 2: 0.4, 3: 0.3})
    assert about(tmp_path / NAME)["metric"] == "val/loss"


class Averages(Hook):
    """An average of zeros."""

    def before_run(self, run: Run) -> None:
        assert run.model is not None
        self.mean = {name: torch.zeros_like(each) for name, each in run.model.named_parameters()}
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
def test_it_is_the_average_where_a_hook_averages(tmp_path: Path, scores: Any) -> None:
    averages = Averages()
    train(tmp_path, averages, CheckpointHook(publish=True), scores=scores)

    assert same(load_file(tmp_path / NAME), averages.mean)


class Stops(Hook):
    def __init__(self, outcome: Any) -> None:
        super().__init__()
        self.outcome = outcome

    def after_train_iter(self, run: Run) -> None:
        run.request_stop("enough", outcome=self.outcome)


@pytest.mark.parametrize(("outcome", "is_published"), [("stopped", True), ("preempted", False), ("interrupted", False)])
def test_a_training_that_will_go_on_publishes_nothing(tmp_path: Path, outcome: Any, is_published: bool) -> None:
    with contextlib.suppress(KeyboardInterrupt):
        train(tmp_path, CheckpointHook(publish=True), Stops(outcome))
    assert (tmp_path / NAME).exists() == is_published


class TestTrouble:
    @pytest.fixture(autouse=True)
    def _full(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real = os.replace

        def replace(source: Any, target: Any) -> None:
            if Path(target).name == "model.safetensors":
                raise OSError(28, "No space left on device")
            real(source, target)

        monkeypatch.setattr(os, "replace", replace)

    def test_ends_the_run(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match=r"model.safetensors could not be written: .*It needs [\d,]+ bytes"):
            train(tmp_path, CheckpointHook(publish=True))

    def test_is_a_warning_where_that_was_asked_for(self, tmp_path: Path) -> None:
        with pytest.warns(HookWarning, match="model.safetensors could not be written"):
            run = train(tmp_path, CheckpointHook(publish=True, on_save_error="warn")).run
        assert run.outcome == "finished"


def test_tied_weights_are_written_each_and_what_is_no_tensor_is_left_out(tmp_path: Path) -> None:
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
