"""Custom loops with several models and optimizers, closures and own state resume bit-exactly after SIGKILL."""

from __future__ import annotations

import json
import logging
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

from hookbus import HookBus
from hookbus.checkpoint import read_checkpoint
from hookbus.checkpoint.state import extract_weights
from hookbus.data.rng import seed_everything
from hookbus.errors import CheckpointError
from hookbus.testing.states import fingerprint
from hookbus_checkpoint import CheckpointHook
from hookbus_ema import EMAHook
from hookbus_logger import JsonlHook, read_jsonl

from .crashes import run_in_fork

DATA = TensorDataset(torch.randn(12, 4, generator=torch.Generator().manual_seed(1)))


class Loop:
    """Loop of one training, which is killed after an iteration if the class sets `killed_after`."""

    killed_after: int | None = None

    def __init__(self, directory: Path) -> None:
        seed_everything(0)
        self.directory = directory
        self.bus = HookBus(
            [CheckpointHook(interval=1, by_epoch=False), EMAHook(momentum=0.5, warm_up=0), JsonlHook(interval=1)]
        )
        self.options: dict[str, Any] = {}
        self.build()

    def build(self) -> None:
        raise NotImplementedError

    def step(self, batch: Any) -> torch.Tensor:
        raise NotImplementedError

    def end_epoch(self) -> None: ...

    def train(self, epochs: int = 2, **options: Any) -> Any:
        options = {"epochs": epochs, "work_dir": self.directory, "resume": "auto", "seed": 3, **self.options, **options}
        with self.bus.run(**options) as run:
            for _ in run.epochs():
                self.bus.emit("before_train_epoch")
                for i, (batch,) in run.batches(DataLoader(DATA, batch_size=4, shuffle=True)):
                    self.bus.emit("before_train_iter", batch_idx=i, batch=batch)
                    loss = self.step(batch)
                    self.bus.emit("after_train_iter", batch_idx=i, batch=batch, outputs={"loss": loss})
                    if run.iters_done == self.killed_after:
                        os.kill(os.getpid(), signal.SIGKILL)
                self.end_epoch()
                self.bus.emit("after_train_epoch")
        return run


class GanLoop(Loop):
    """Two models with an optimizer and a scheduler each. G steps in every second iteration only."""

    def build(self) -> None:
        self.models = {"G": nn.Linear(2, 4), "D": nn.Sequential(nn.Linear(4, 1), nn.BatchNorm1d(1))}
        self.optimizers = {
            "G": torch.optim.SGD(self.models["G"].parameters(), lr=0.1, momentum=0.9),
            "D": torch.optim.Adam(self.models["D"].parameters(), lr=0.01),
        }
        self.schedulers = {name: StepLR(optimizer, 1, gamma=0.5) for name, optimizer in self.optimizers.items()}
        self.options = {"model": self.models, "optimizer": self.optimizers, "scheduler": self.schedulers}

    def step(self, batch: Any) -> torch.Tensor:
        fake = self.models["G"](torch.randn(len(batch), 2))
        real, generated = self.models["D"](batch), self.models["D"](fake.detach())
        loss = functional.softplus(-real).mean() + functional.softplus(generated).mean()
        self.optimizers["D"].zero_grad()
        loss.backward()
        self.optimizers["D"].step()
        if self.bus.current.iter % 2:
            self.optimizers["G"].zero_grad()
            functional.softplus(-self.models["D"](fake)).mean().backward()
            self.optimizers["G"].step()
        return loss.detach()

    def end_epoch(self) -> None:
        for scheduler in self.schedulers.values():
            scheduler.step()


class AccumulatingLoop(GanLoop):
    """D steps in every iteration, and G accumulates the gradients of two iterations."""

    def step(self, batch: Any) -> torch.Tensor:
        fake = self.models["G"](torch.randn(len(batch), 2))
        loss: torch.Tensor = functional.softplus(-self.models["D"](fake)).mean()
        self.optimizers["D"].zero_grad()
        if self.bus.current.iters_done % 2 == 0:
            self.optimizers["G"].zero_grad()
        loss.backward()
        self.optimizers["D"].step()
        if self.bus.current.iters_done % 2:
            self.optimizers["G"].step()
        return loss.detach()


class ClosureLoop(Loop):
    """LBFGS, whose closure is evaluated several times per step."""

    def build(self) -> None:
        self.model = nn.Linear(4, 1)
        self.optimizer = torch.optim.LBFGS(self.model.parameters(), lr=0.1, max_iter=3)
        self.options = {"model": self.model, "optimizer": self.optimizer}

    def step(self, batch: Any) -> torch.Tensor:
        def closure() -> torch.Tensor:
            self.optimizer.zero_grad()
            loss = (self.model(batch).sum(1) - batch.sum(1)).square().mean()
            loss.backward()
            return loss

        return self.optimizer.step(closure).detach()


class RecurrentLoop(Loop):
    """Truncated backpropagation: the hidden state, a counter and a loss with a parameter are state of the loop."""

    def build(self) -> None:
        self.model, self.hidden, self.counts = nn.RNNCell(4, 3), torch.zeros(4, 3), [0]
        self.loss = nn.Linear(3, 1)
        self.optimizer = torch.optim.Adam([*self.model.parameters(), *self.loss.parameters()], lr=0.05)
        state = {"hidden": (lambda: self.hidden, self.set_hidden), "counts": (lambda: self.counts, self.counts.extend)}
        self.options = {"model": self.model, "loss": self.loss, "optimizer": self.optimizer, "state": state}
        self.counts.clear()

    def set_hidden(self, value: torch.Tensor) -> None:
        self.hidden = value

    def step(self, batch: Any) -> torch.Tensor:
        self.hidden = self.model(batch, self.hidden.detach())
        self.counts.append(len(self.counts))
        loss: torch.Tensor = self.loss(self.hidden).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


class AccumulatingLossLoop(RecurrentLoop):
    """Gradients of a model and of a loss with parameters, accumulated over two iterations."""

    def step(self, batch: Any) -> torch.Tensor:
        if self.bus.current.iters_done % 2 == 0:
            self.optimizer.zero_grad()
        loss: torch.Tensor = self.loss(self.model(batch)).square().mean()
        loss.backward()
        if self.bus.current.iters_done % 2:
            self.optimizer.step()
        return loss.detach()


def read_result(directory: Path) -> tuple[dict[str, Any], list[Any]]:
    """Return what must be equal in two trainings: the content of the last checkpoint, and the log."""
    checkpoint = read_checkpoint(directory / "checkpoints/last.pth")
    keys = ("state_dict", "ema_state_dict", "optimizer", "scheduler", "loss", "state", "rng")
    parts = {key: checkpoint[key] for key in keys if key in checkpoint}
    counts = {name: checkpoint["loop"]["clock"][name] for name in ("iters_done", "steps_done")}
    records = [record for record in read_jsonl(directory / "logs/metrics.jsonl") if record["kind"] == "train"]
    log = [[record["step"], record["values"]] for record in records]
    return {**parts, "counts": counts, "optimizers": checkpoint["loop"]["optimizers"]}, log


def assert_equal(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.slow
@pytest.mark.parametrize("loop", [GanLoop, AccumulatingLoop, ClosureLoop, RecurrentLoop, AccumulatingLossLoop])
def test_killed_loop_resumes_bit_exactly(loop: type[Loop], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop(tmp_path / "whole").train()
    for killed_after in (1, 2, 5):
        directory = tmp_path / f"killed-{killed_after}"
        with monkeypatch.context() as patch:
            patch.setattr(loop, "killed_after", killed_after)
            status = run_in_fork(lambda directory=directory: loop(directory).train())
        assert os.WTERMSIG(status) == signal.SIGKILL
        loop(directory).train()
        (expected, log), (actual, resumed_log) = read_result(tmp_path / "whole"), read_result(directory)
        assert {key: fingerprint(part) for key, part in actual.items()} == {
            key: fingerprint(part) for key, part in expected.items()
        }
        assert resumed_log == log


def test_file_maps_names_to_states(tmp_path: Path) -> None:
    training = GanLoop(tmp_path)
    training.train(1)
    checkpoint = torch.load(tmp_path / "checkpoints/last.pth", weights_only=True)
    assert {key: list(checkpoint[key]) for key in ("state_dict", "ema_state_dict", "optimizer", "scheduler")} == {
        key: ["G", "D"] for key in ("state_dict", "ema_state_dict", "optimizer", "scheduler")
    }
    for name, model in training.models.items():
        assert_equal(checkpoint["state_dict"][name], dict(model.state_dict()))
        model.load_state_dict(checkpoint["state_dict"][name])
        training.optimizers[name].load_state_dict(checkpoint["optimizer"][name])
        training.schedulers[name].load_state_dict(checkpoint["scheduler"][name])
    assert list(extract_weights(checkpoint))[:3] == ["G.weight", "G.bias", "D.0.weight"]


def test_rates_and_steps_are_logged_by_name(tmp_path: Path) -> None:
    GanLoop(tmp_path).train()
    records = [record for record in read_jsonl(tmp_path / "logs/metrics.jsonl") if record["kind"] == "train"]
    names = ("lr/G", "lr/D", "steps/G", "steps/D")
    assert [[record["step"], *(record["values"][name] for name in names)] for record in records] == [
        [1, 0.1, 0.01, 0, 1],
        [2, 0.1, 0.01, 1, 2],
        [3, 0.1, 0.01, 1, 3],
        [4, 0.05, 0.005, 2, 4],
        [5, 0.05, 0.005, 2, 5],
        [6, 0.05, 0.005, 3, 6],
    ]


def test_average_is_updated_once_per_iteration_with_several_optimizers(tmp_path: Path) -> None:
    training, expected = GanLoop(tmp_path), []

    def average(run: Any) -> None:
        weight = training.models["D"][0].weight.detach()
        expected.append(weight.clone() if not expected else 0.5 * expected[-1] + 0.5 * weight)

    training.bus.on("before_train", name="start")(average)
    training.bus.on("after_train_iter", name="mean", priority=100)(average)
    training.train()
    averaged = read_checkpoint(tmp_path / "checkpoints/last.pth")["ema_state_dict"]["D"]["0.weight"]
    torch.testing.assert_close(averaged, expected[-1])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"optimizer": "G", "scheduler": "G"},
            "optimizer state .* one optimizer without a name, .* the names G, D. Pass",
        ),
        ({"model": "G", "optimizer": "G", "scheduler": "G"}, "weights do not match the model"),
    ],
)
def test_file_of_named_objects_does_not_match_a_single_one(
    changes: dict[str, str], message: str, tmp_path: Path
) -> None:
    GanLoop(tmp_path).train(1)
    resumed = GanLoop(tmp_path)
    resumed.options |= {key: resumed.options[key][name] for key, name in changes.items()}
    with pytest.raises(CheckpointError, match=message):
        resumed.train()


def test_missing_and_unknown_names_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = GanLoop(tmp_path)
    first.options["state"] = {"old": (lambda: 1, print)}
    first.train(1)
    resumed = GanLoop(tmp_path)
    resumed.options["optimizer"] = {"E": resumed.optimizers["G"], "D": resumed.optimizers["D"]}
    resumed.options["state"] = {"new": (lambda: 1, print)}
    with caplog.at_level(logging.WARNING):
        resumed.train(1)
    messages = "\n".join(record.getMessage() for record in caplog.records)
    assert "No optimizer 'E' state in the checkpoint; it is re-initialized." in messages
    assert "contains a optimizer 'G' state, but the run has no optimizer 'G'; it is ignored." in messages
    assert "No state 'new' of the loop in the checkpoint; it is unchanged." in messages
    assert "The checkpoint contains the state 'old' of the loop, but the run has none; it is ignored." in messages


def test_file_of_a_module_dict_resumes_with_named_models(tmp_path: Path) -> None:
    first = GanLoop(tmp_path)
    first.options["model"] = nn.ModuleDict(first.models)
    first.train(1)
    resumed = GanLoop(tmp_path)
    resumed.train(1)
    assert_equal(dict(resumed.models["D"].state_dict()), dict(first.models["D"].state_dict()))


def test_state_that_cannot_be_saved_or_loaded_is_an_error_with_its_name(tmp_path: Path) -> None:
    training = RecurrentLoop(tmp_path / "a")
    training.options["state"] = {"env": (object, print)}
    with pytest.raises(CheckpointError, match=r"state\['env'\]: invalid type object"):
        training.train(1)
    training = RecurrentLoop(tmp_path / "b")
    training.options["state"] = {"env": (lambda: "text", json.loads)}
    training.train(1)
    with pytest.raises(CheckpointError, match=r"state\['env'\]: the state in the checkpoint cannot be loaded: JSON"):
        training.train(2)
