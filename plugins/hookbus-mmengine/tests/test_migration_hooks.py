"""Rows of the migration table of MMEngine: hooks that control the training or change its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("mmengine", reason="MMEngine is not installed: run `make bridges HOST=mmengine`")

from mmengine.hooks import EarlyStoppingHook as ForeignEarlyStoppingHook
from mmengine.hooks import EMAHook as ForeignEMAHook
from torch import Tensor, nn

from hookbus.errors import LoopError
from hookbus.testing import HostTask
from hookbus_checkpoint import CheckpointHook
from hookbus_early_stopping import EarlyStoppingHook
from hookbus_ema import EMAHook
from hookbus_eval import EvalHook
from hookbus_guards import CheckInvalidLossHook
from hookbus_mmengine.safe_types import allow_checkpoint_types
from hookbus_runtime import MeanTeacherHook
from hookbus_schedule import ParamSchedulerHook

from .adapter import MeanLoss, RequestAt
from .migration_rows import (
    CallRecorder,
    attach_and_train,
    build_plain_runner,
    build_plain_trainer,
    get_weights,
    load_detection_hook,
    runs_row,
)

STOP = 8  # iteration, in the second epoch


class Results(MeanLoss):
    """Validation results that are given for each epoch."""

    def __init__(self, values: list[float]) -> None:
        super().__init__(HostTask())
        self.values = iter(values)

    def compute_metrics(self, results: list[Any]) -> dict[str, float]:
        return {"loss": next(self.values)}


# -- checkpoints -----------------------------------------------------------------------------------


def save_each_epoch(**options: Any) -> dict[str, Any]:
    """Return the default hooks of a Runner that saves after each epoch."""
    return {"checkpoint": {"type": "CheckpointHook", "interval": 1, **options}, "logger": None}


def list_weights(directory: Path) -> dict[str, Tensor]:
    """Return the weights in the checkpoints of epochs, by file name."""
    states = {path.name: torch.load(path)["state_dict"] for path in sorted(directory.glob("epoch_*.pth"))}
    return {name: torch.cat([value.flatten() for value in state.values()]) for name, state in states.items()}


@runs_row("`CheckpointHook`", "`checkpoint`")
def test_same_checkpoints_are_kept_with_the_same_weights(tmp_path: Path) -> None:
    allow_checkpoint_types()
    results = [3.0, 1.0, 2.0, 4.0]
    saving = save_each_epoch(max_keep_ckpts=2, save_best="loss", rule="less")
    runner = build_plain_runner(HostTask(epochs=4), tmp_path, default_hooks=saving, val_evaluator=[Results(results)])
    runner.train()
    trained = build_plain_runner(HostTask(epochs=4), tmp_path / "ours", val_evaluator=[Results(results)])
    ours = CheckpointHook(max_keep_ckpts=2, best_metric="loss", rule="less")
    attach_and_train(trained, ours, checkpoints="hookbus", work_dir=tmp_path / "hookbus")
    native, saved = (list_weights(tmp_path / name) for name in ("host", "hookbus/checkpoints"))
    assert native.keys() == saved.keys() == {"epoch_3.pth", "epoch_4.pth"}
    assert all(torch.equal(native[name], saved[name]) for name in native)
    best = torch.load(tmp_path / "host/best_loss_epoch_2.pth")["state_dict"]
    (path,) = (tmp_path / "hookbus/checkpoints").glob("best_*.pth")
    assert all(torch.equal(best[name], value) for name, value in torch.load(path)["state_dict"].items())


@runs_row("`resume=True`", "`checkpoint`, with `resume: auto`")
def test_resumed_training_ends_with_the_same_weights(tmp_path: Path) -> None:
    allow_checkpoint_types()

    def train(epochs: int, **arguments: Any) -> Tensor:
        runner = build_plain_runner(
            HostTask(epochs=epochs), tmp_path / "native", default_hooks=save_each_epoch(), **arguments
        )
        runner.train()
        return get_weights(runner.model)

    def train_ours(*hooks: Any, **options: Any) -> Tensor:
        runner = build_plain_runner(HostTask(epochs=3), tmp_path / "runner")
        hooks = (CheckpointHook(best_metric="loss"), *hooks)
        attach_and_train(runner, *hooks, checkpoints="hookbus", work_dir=tmp_path / "ours", **options)
        return get_weights(runner.model)

    train(1)
    resumed = train(3, resume=True)
    train_ours(RequestAt(STOP, "stop"))
    assert torch.equal(train_ours(resume="auto"), resumed)
    uninterrupted = build_plain_runner(HostTask(epochs=3), tmp_path / "whole")
    uninterrupted.train()
    assert torch.equal(get_weights(uninterrupted.model), resumed)


# -- stops and validations -------------------------------------------------------------------------


@runs_row(
    "`EarlyStoppingHook`",
    "`early_stopping`, which restores the best weights unless `restore_best_weights: false`",
)
@pytest.mark.parametrize(
    ("results", "epochs"),
    [
        ([5, 4, 3.8, 4.2, 1, 1], 4),  # 3.8 and 4.2 are no improvements of 4 by 0.5
        ([5, 4, 4.2, 3, 3, 3.5], 6),  # the third epoch is followed by an improvement
        ([5, 4, float("nan"), 3, 2, 1], 3),
        ([6, 5, 4, 3, 2, 1], 6),
    ],
)
def test_training_stops_after_the_same_epoch(results: list[float], epochs: int, tmp_path: Path) -> None:
    native = ForeignEarlyStoppingHook("loss", rule="less", min_delta=0.5, patience=2)
    runner = build_plain_runner(
        HostTask(epochs=6), tmp_path / "native", custom_hooks=[native], val_evaluator=[Results(results)]
    )
    runner.train()
    trained = build_plain_runner(HostTask(epochs=6), tmp_path / "ours", val_evaluator=[Results(results)])
    rule = {"monitor": "loss", "min_delta": 0.5, "patience": 2}
    bus = attach_and_train(trained, EarlyStoppingHook(**rule, restore_best_weights=False))
    assert (runner.epoch, trained.epoch, bus.current.epochs_done) == (epochs,) * 3
    assert torch.equal(get_weights(runner.model), get_weights(trained.model))


@pytest.mark.parametrize(("epochs", "outcome"), [(6, "stopped"), (3, "finished")])
def test_run_is_stopped_by_the_native_hook(epochs: int, outcome: str, tmp_path: Path) -> None:
    native = ForeignEarlyStoppingHook("loss", rule="less", min_delta=0.5, patience=2)
    results = [Results([5, 6, 7])]
    runner = build_plain_runner(HostTask(epochs=epochs), tmp_path, custom_hooks=[native], val_evaluator=results)
    run = attach_and_train(runner).current
    assert (run.outcome, run.epochs_done) == (outcome, 3)


@runs_row("`val_interval`", "`eval`")
def test_validations_follow_the_same_epochs(tmp_path: Path) -> None:
    native, ours = [], []
    recorder = CallRecorder(lambda name, runner: native.append((runner.epoch, runner.iter)), "after_val")
    cfg = {"by_epoch": True, "max_epochs": 5, "val_interval": 2}
    build_plain_runner(HostTask(), tmp_path, custom_hooks=[recorder], train_cfg=cfg).train()
    trainer = build_plain_trainer(HostTask(epochs=5), None, EvalHook(interval=2, save_best=False))
    trainer.bus.on("after_val")(lambda run: ours.append((run.epoch + 1, run.iters_done)))
    trainer.fit()
    assert native == ours == [(2, 12), (4, 24), (5, 30)]


@runs_row("`CheckInvalidLossHook`", "`check_invalid_loss`")
@pytest.mark.parametrize(("interval", "iteration"), [(1, 3), (2, 4)])
def test_invalid_loss_fails_in_the_same_iteration(interval: int, iteration: int, tmp_path: Path) -> None:
    foreign = load_detection_hook("checkloss_hook", "CheckInvalidLossHook")
    runner = build_plain_runner(HostTask(nan_at=2), tmp_path / "native", custom_hooks=[foreign(interval)])
    with pytest.raises(AssertionError):
        runner.train()
    checked = build_plain_runner(HostTask(nan_at=2), tmp_path / "ours")
    with pytest.raises(LoopError):
        attach_and_train(checked, CheckInvalidLossHook(interval=interval))
    assert (runner.iter + 1, checked.iter + 1) == (iteration, iteration)


# -- weights ---------------------------------------------------------------------------------------


def skip_first_step(name: str, runner: Any) -> None:
    runner.optim_wrapper.param_groups[0]["lr"] = 0.1 if runner.iter else 0.0


def average(directory: Path, *hooks: Any) -> tuple[Any, dict[str, Tensor], dict[str, Tensor]]:
    """Train with both hooks at once, and return the Runner and the averages of MMEngine and of hookbus."""
    native, ours = ForeignEMAHook(momentum=0.25), EMAHook(momentum=0.75, warm_up=0)
    runner = build_plain_runner(HostTask(validate=False), directory, custom_hooks=[native, *hooks])
    attach_and_train(runner, ours)
    averaged = ours.average.averaged()
    assert averaged is not None
    return runner, dict(native.ema_model.module.named_parameters()), averaged


@runs_row(
    "`EMAHook`",
    "`ema` with `warm_up: 0` and 1 minus the momentum; it averages optimizer steps, from the initial weights on",
)
class TestEMA:
    def test_averages_are_the_same_after_a_first_step_without_effect(self, tmp_path: Path) -> None:
        runner, native, ours = average(tmp_path, CallRecorder(skip_first_step, "before_train_iter"))
        assert len(native) == 4
        assert all(torch.equal(native[name], ours[name]) for name in native)
        assert not torch.equal(ours["model.task_model.layers.0.weight"], get_weight(runner))

    def test_weight_of_the_initial_weights_is_that_of_their_age(self, tmp_path: Path) -> None:
        once = build_plain_runner(HostTask(), tmp_path / "once", train_cfg={"by_epoch": False, "max_iters": 1})
        initial = get_weight(once).detach().clone()
        once.train()
        _, native, ours = average(tmp_path / "both")
        name = "model.task_model.layers.0.weight"
        # MMEngine copies the weights after the first iteration; here they are averaged with the initial ones.
        expected = 0.75**12 * (initial.double() - get_weight(once).double())
        torch.testing.assert_close(ours[name].double() - native[name].double(), expected, rtol=0, atol=1e-7)
        assert expected.abs().max() > 1e-4


def get_weight(runner: Any) -> Tensor:
    weight: Tensor = runner.model.model.task_model.layers[0].weight
    return weight


@runs_row("`clip_grad` of `OptimWrapper`", "`training.clip_grad_norm`")
@pytest.mark.parametrize("accumulate", [1, 2])
def test_clipped_gradients_result_in_the_same_weights(accumulate: int, tmp_path: Path) -> None:
    def train(name: str, **arguments: Any) -> Tensor:
        runner = build_plain_runner(HostTask(accumulate=accumulate), tmp_path / name, **arguments)
        runner.train()
        return get_weights(runner.model)

    native = train("native", clip_grad={"max_norm": 0.1})
    trainer = build_plain_trainer(HostTask(accumulate=accumulate), None, clip_grad_norm=0.1)
    trainer.fit()
    assert torch.equal(get_weights(trainer.model), native)
    assert not torch.equal(train("unclipped"), native)


@runs_row("`ParamSchedulerHook`", "`param_scheduler`, whose iterations are optimizer steps")
@pytest.mark.parametrize(
    ("native", "ours"),
    [
        (
            {"type": "MultiStepLR", "milestones": [1], "gamma": 0.5},
            {"type": "MultiStepLR", "milestones": [1], "gamma": 0.5, "interval": "epoch"},
        ),
        (
            {"type": "ExponentialLR", "by_epoch": False, "gamma": 0.5},
            {"type": "ExponentialLR", "gamma": 0.5, "interval": "step"},
        ),
    ],
)
def test_learning_rates_are_the_same(native: Any, ours: Any, tmp_path: Path) -> None:
    def train(name: str, *hooks: Any, **arguments: Any) -> tuple[list[float], Tensor]:
        rates: list[float] = []
        recorder = CallRecorder(
            lambda name, runner: rates.extend(runner.optim_wrapper.get_lr()["lr"]), "before_train_iter"
        )
        runner = build_plain_runner(HostTask(), tmp_path / name, custom_hooks=[recorder], **arguments)
        attach_and_train(runner, *hooks)
        return rates, get_weights(runner.model)

    rates, weights = train("native", param_scheduler=[native])
    assert rates == ([0.1] * 6 + [0.05] * 6 if "milestones" in native else [0.1 * 0.5**i for i in range(12)])
    scheduled, trained = train("ours", ParamSchedulerHook(schedulers=[ours]))
    assert scheduled == rates
    assert torch.equal(trained, weights)


class TeacherAndStudent(nn.Module):
    """Model whose student is trained, and whose teacher begins with other weights."""

    def __init__(self, task: HostTask) -> None:
        super().__init__()
        self.student, self.teacher = task.model(), task.model()
        self.student.layers[1].p = 0.0
        nn.init.ones_(self.teacher.layers[0].weight)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.student(inputs)
        return outputs


@runs_row("`MeanTeacherHook`", "`mean_teacher`")
def test_teacher_has_the_same_weights(tmp_path: Path) -> None:
    foreign = load_detection_hook("mean_teacher_hook", "MeanTeacherHook")
    task = HostTask(validate=False)
    runner = build_plain_runner(task, tmp_path)
    model = TeacherAndStudent(task)
    runner.model.add_module("student", runner.model.model.task_model)
    runner.model.add_module("teacher", model.teacher)
    runner.register_hook(foreign(momentum=0.25))
    runner.train()
    ours = TeacherAndStudent(HostTask())
    trainer = build_plain_trainer(
        task, None, MeanTeacherHook(momentum=0.25), model=ours, optimizer=task.optimizer(ours.student)
    )
    trainer.fit()
    assert torch.equal(get_weights(ours.student), get_weights(runner.model.student))
    torch.testing.assert_close(get_weights(ours.teacher), get_weights(runner.model.teacher), rtol=0, atol=1e-7)
    assert not torch.equal(get_weights(ours.teacher), get_weights(ours.student))
