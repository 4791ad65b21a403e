"""Weights that a hook exchanges for validations by itself: best files contain them, and runs resume exactly."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from hookbus._run import evaluated_weights
from hookbus._run.run import Run
from hookbus.bus import HookBus
from hookbus.checkpoint.state import read_checkpoint
from hookbus.hook import Hook
from hookbus.testing import fingerprint
from hookbus.trainer.trainer import Trainer
from hookbus_checkpoint import CheckpointHook
from hookbus_early_stopping import EarlyStoppingHook
from tests.toys import pairs

Weights = dict[str, Tensor]
Write = Callable[[nn.Module, Weights], object]


def write_in_place(model: nn.Module, weights: Weights) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])


def write_data(model: nn.Module, weights: Weights) -> None:
    for name, parameter in model.named_parameters():
        parameter.data.copy_(weights[name])


def assign_data(model: nn.Module, weights: Weights) -> None:
    for name, parameter in model.named_parameters():
        parameter.data = weights[name].clone()


def load(model: nn.Module, weights: Weights) -> None:
    model.load_state_dict(weights)


class Exchange(Hook):
    """Hook of another package that evaluates half of the weights.

    Args:
        write: Function that writes weights into the model.
    """

    def __init__(self, write: Write = load) -> None:
        super().__init__()
        self.write, self.raw = write, dict[str, Tensor]()

    def exchange(self, run: Run) -> None:
        assert run.model is not None
        self.raw = copy.deepcopy(run.model.state_dict())
        self.write(run.model, {name: value / 2 for name, value in self.raw.items()})

    def restore(self, run: Run) -> None:
        assert run.model is not None
        self.write(run.model, self.raw)


class InContext(Exchange):
    def before_train(self, run: Run) -> None:
        run.around_validation(self.applied)

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        self.exchange(self.run)
        yield
        self.restore(self.run)


class AroundValidation(Exchange):
    def before_val(self, run: Run) -> None:
        self.exchange(run)

    def after_val(self, run: Run) -> None:
        self.restore(run)


class AroundLoader(Exchange):
    def before_val_epoch(self, run: Run) -> None:
        self.exchange(run)

    def after_val_epoch(self, run: Run) -> None:
        self.restore(run)


class HeadOnly(InContext):
    """Exchange one of two tensors."""

    def exchange(self, run: Run) -> None:
        super().exchange(run)
        assert run.model is not None
        self.write(run.model, {**run.model.state_dict(), "weight": self.raw["weight"]})


def build(*hooks: Hook, work_dir: Path | None = None, **options: Any) -> Trainer:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    settings = {"train_loader": pairs(3), "val_loader": pairs(2), "epochs": 3, "default_hooks": False, "seed": 0}
    return Trainer(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9),
        loss_fn=nn.functional.cross_entropy,
        hooks=list(hooks),
        work_dir=work_dir,
        **settings | options,
    )


def compute_loss(weights: Any) -> float:
    model = nn.Linear(4, 2)
    model.load_state_dict(weights)
    with torch.no_grad():
        return sum(float(nn.functional.cross_entropy(model(x), y)) for x, y in pairs(2)) / 2


def get_final_state(run: Run) -> str:
    assert run.model is not None
    assert run.optimizer is not None
    return fingerprint([run.model.state_dict(), run.optimizer.state_dict()["state"]])


KINDS = [(InContext, write_data), (InContext, assign_data), (AroundValidation, write_in_place), (AroundLoader, load)]


@pytest.mark.parametrize(("cls", "write"), KINDS)
def test_best_file_contains_the_weights_of_the_score_and_resumes_exactly(
    cls: type[Exchange], write: Write, tmp_path: Path
) -> None:
    def saver() -> CheckpointHook:
        return CheckpointHook(best_metric="loss", save_best=True, publish=True, max_keep_ckpts=1)

    expected = build(cls(write), epochs=2).fit()
    run = build(cls(write), saver(), work_dir=tmp_path, epochs=1).fit()
    best = run.best["val/loss"]
    assert best.path is not None
    checkpoint = read_checkpoint(best.path)
    assert best.weights == "evaluated"
    assert checkpoint["meta"]["best_weights"] == {"val/loss": "evaluated"}
    assert compute_loss(checkpoint["state_dict"]) == pytest.approx(best.value)
    assert compute_loss(load_file(tmp_path / "checkpoints/model.safetensors")) == pytest.approx(best.value)
    halves = {name: value / 2 for name, value in checkpoint["training_weights"].items()}
    assert fingerprint(halves) == fingerprint(checkpoint["state_dict"])

    resumed = build(cls(write), saver(), work_dir=tmp_path, resume=best.path, epochs=2).fit()
    assert get_final_state(resumed) == get_final_state(expected)


def test_only_changed_tensors_are_copied_and_only_for_better_results(tmp_path: Path) -> None:
    saver = CheckpointHook(best_metric="loss", rule="greater", save_best=True, max_keep_ckpts=9)
    hook = HeadOnly(write_data)
    with mock.patch.object(evaluated_weights, "_copy", wraps=evaluated_weights._copy) as copies:
        run = build(hook, saver, work_dir=tmp_path, metrics={}, epochs=3).fit()
    # The loss decreases, so that only the first validation has the greatest one.
    assert run.best["val/loss"].epoch == 1
    assert [list(call.args[1]) for call in copies.call_args_list] == [["bias"]]
    first, last = (read_checkpoint(tmp_path / f"checkpoints/epoch_{number}.pth") for number in (1, 3))
    assert set(first["training_weights"]) == {"bias"}
    assert torch.equal(first["state_dict"]["bias"], first["training_weights"]["bias"] / 2)
    assert "training_weights" not in last


def test_weights_that_no_hook_exchanges_are_not_copied(tmp_path: Path) -> None:
    class Rewrite(InContext):
        """Write the weights of training, as an average does before its start."""

        def exchange(self, run: Run) -> None:
            super().exchange(run)
            self.restore(run)

    with mock.patch.object(evaluated_weights, "_copy") as copies:
        run = build(Rewrite(), CheckpointHook(best_metric="loss"), work_dir=tmp_path, epochs=1).fit()
    assert not copies.called
    assert run.best["val/loss"].weights == "raw"


def test_file_is_tested_with_the_weights_of_the_score(tmp_path: Path) -> None:
    run = build(InContext(), CheckpointHook(best_metric="loss"), work_dir=tmp_path).fit()
    best = run.best["val/loss"]
    tester = build(load_from=best.path, test_loader=pairs(2))
    assert tester.test()["test/loss"] == pytest.approx(best.value)


def test_best_file_that_was_lost_is_written_again_after_a_resume(tmp_path: Path) -> None:
    def train(**options: Any) -> Run:
        return build(InContext(), CheckpointHook(best_metric="loss"), work_dir=tmp_path, **options).fit()

    best = train(epochs=1).best["val/loss"]
    assert best.path is not None
    weights = fingerprint(read_checkpoint(best.path)["state_dict"])
    best.path.unlink()

    class Stop(Hook):
        def before_train_iter(self, run: Run) -> None:
            run.request_stop("repaired")

    build(InContext(), CheckpointHook(best_metric="loss"), Stop(), work_dir=tmp_path, resume="auto", epochs=2).fit()
    assert fingerprint(read_checkpoint(best.path)["state_dict"]) == weights


def test_early_stopping_restores_the_weights_of_the_score_from_the_file(tmp_path: Path) -> None:
    stopping = EarlyStoppingHook(monitor="loss", patience=9, restore_best_weights="file")
    trainer = build(InContext(), CheckpointHook(best_metric="loss"), stopping, work_dir=tmp_path)
    run = trainer.fit()
    assert run.model is not None
    assert compute_loss(run.model.state_dict()) == pytest.approx(run.best["val/loss"].value)


def test_weights_that_are_restored_before_the_results_are_known_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hook, bus = Exchange(), HookBus()
    model = nn.Linear(4, 2)

    def validate(run: Run) -> dict[str, float]:
        hook.exchange(run)
        loss = compute_loss(model.state_dict())
        hook.restore(run)
        return {"loss": loss}

    bus.register(CheckpointHook(best_metric="loss"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with bus.run(model=model, optimizer=optimizer, epochs=2, work_dir=tmp_path, validate=validate) as run:
        for _ in run.epochs():
            for _, batch in run.batches(pairs(2)):
                bus.emit("before_train_iter", batch=batch)
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
                optimizer.step()
                bus.emit("after_train_iter", batch=batch)
            run.request_validation()
    messages = [message for message in caplog.messages if "run.weights.provide" in message]
    assert len(messages) == 1
    assert messages[0].startswith("The weights were written during a validation")


def test_loop_that_validates_itself_has_the_same_files(tmp_path: Path) -> None:
    bus = HookBus([AroundValidation(write_data), CheckpointHook(best_metric="loss")])
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with bus.run(model=model, optimizer=optimizer, epochs=1, work_dir=tmp_path) as run:
        for _ in run.epochs():
            for _, batch in run.batches(pairs(2)):
                bus.emit("before_train_iter", batch=batch)
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
                optimizer.step()
                bus.emit("after_train_iter", batch=batch)
            run.begin_validation()
            run.end_validation({"loss": compute_loss(model.state_dict())})
    best = run.best["val/loss"]
    assert best.path is not None
    assert compute_loss(read_checkpoint(best.path)["state_dict"]) == pytest.approx(best.value)
