"""Validations and checkpoints with `policy: stop`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hookbus import Hook, HookBus, Run, Trainer
from hookbus._run.requests import Request
from hookbus._run.status import read_status
from hookbus.errors import LoopError
from hookbus_guards import CheckInvalidLossHook

NAN = math.nan


class Saver(Hook):
    """Request a save at every boundary and record the saved weights."""

    def __init__(self) -> None:
        super().__init__()
        self.saved: list[float] = []

    def before_run(self, run: Run) -> None:
        run.provide("checkpoint_saver", self)

    def after_train_iter(self, run: Run) -> None:
        run.request_save("iteration")

    def after_train_epoch(self, run: Run) -> None:
        run.request_save("epoch")

    def after_train(self, run: Run) -> None:
        run.request_save("end")

    def plan(self, run: Run, requests: list[Request]) -> Path:
        return Path("unused.pth")

    def write(self, run: Run, checkpoint: dict[str, Any]) -> bool:
        self.saved.append(float(checkpoint["state_dict"]["weight"]))
        return False


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, batch: Tensor) -> dict[str, Tensor]:
        return {"loss": (self.weight * batch.mean()) * 1.0}


def train(
    values: list[float], tmp_path: Path, extra_hook: Hook | None = None, **settings: Any
) -> tuple[Run, Saver, list[int]]:
    model, saver, validated = Scale(), Saver(), list[int]()
    options = {"accumulate": settings.pop("accumulate", 1)}

    class ValidationRecorder(Hook):
        def before_val(self, run: Run) -> None:
            validated.append(run.iters_done)

    trainer = Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        train_loader=[torch.tensor([value]) for value in values],
        val_loader=[torch.tensor([1.0])],
        epochs=2,
        hooks=[CheckInvalidLossHook({"interval": 1, "policy": "stop", **settings}), saver, ValidationRecorder()]
        + ([extra_hook] if extra_hook else []),
        work_dir=tmp_path,
        default_hooks=False,
        device="cpu",
        **options,
    )
    return trainer.fit(), saver, validated


@pytest.mark.parametrize("values", [[1.0, NAN, 1.0], [1.0, 1.0, NAN]])
def test_weights_after_an_invalid_step_are_neither_validated_nor_saved(tmp_path: Path, values: list[float]) -> None:
    run, saver, validated = train(values, tmp_path)

    assert run.outcome == "aborted"
    assert len(saver.saved) == values.index(values[-1] if math.isnan(values[-1]) else values[1])
    assert all(map(math.isfinite, saver.saved))
    assert validated == []
    assert read_status(run.work_dir.path)["exit_code"] == 1  # type: ignore[union-attr]


def test_preemption_at_the_same_boundary_saves_nothing(tmp_path: Path) -> None:
    class PreemptionHook(Hook):
        def after_train_iter(self, run: Run) -> None:
            if run.iters_done == 2:
                run.request_stop("signal", outcome="preempted")

    run, saver, _ = train([1.0, NAN, 1.0], tmp_path, PreemptionHook())

    assert run.outcome == "aborted"
    assert len(saver.saved) == 1


def test_weights_without_an_invalid_step_are_saved(tmp_path: Path) -> None:
    run, saver, _ = train([1.0, NAN, 1.0], tmp_path, before_step=True)

    assert run.outcome == "stopped"
    assert len(saver.saved) >= 2
    assert all(map(math.isfinite, saver.saved))


def test_invalid_gradients_of_an_accumulation_are_not_saved(tmp_path: Path) -> None:
    run, saver, _ = train([1.0, 1.0, NAN, 1.0], tmp_path, accumulate=2)

    assert run.outcome == "aborted"
    assert len(saver.saved) == 2


def test_save_of_invalid_weights_between_two_checks_is_prevented(tmp_path: Path) -> None:
    run, saver, validated = train([1.0, NAN, 1.0], tmp_path, interval=100)

    assert run.outcome == "aborted"
    assert run.stop_reasons[0].startswith("check_invalid_loss: The weights are not finite after iteration 2")
    assert len(saver.saved) == 1
    assert validated == []


def test_save_of_invalid_weights_with_policy_raise_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LoopError, match="weights are not finite after iteration 2"):
        train([1.0, NAN, 1.0], tmp_path, interval=100, policy="raise")


def test_abort_drops_requests_of_the_same_boundary() -> None:
    saver = Saver()
    bus = HookBus([saver])
    bus.on("after_train_iter")(lambda run: run.request_abort("broken"))
    with bus.run(model=Scale(), epochs=1) as run:
        for _ in run.epochs():
            for _ in run.batches([1, 2]):
                bus.emit("before_train_iter")
                bus.emit("after_train_iter")

    assert (run.outcome, run.iters_done) == ("aborted", 1)
    assert saver.saved == []
