"""Hooks that set the learning rate, beside the scheduler of the Trainer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed: run `make bridges HOST=transformers`")

from transformers import TrainerCallback

from hookbus import Hook, HookBus
from hookbus.errors import ConfigError
from hookbus.testing import RecordingBus
from hookbus_schedule import ParamSchedulerHook, YOLOXLrUpdaterHook

from .toys import StopTrainer, make_trainer, train

RATE = 0.1
"""Learning rate of the optimizer of the task."""


class RecordRates(TrainerCallback):
    """Record the learning rate with which the optimizer makes each step."""

    def __init__(self) -> None:
        self.rates: list[float] = []

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, optimizer: Any = None, **_: Any) -> None:
        self.rates += [group["lr"] for group in optimizer.param_groups]


def make_hooks() -> list[Hook]:
    return [
        YOLOXLrUpdaterHook(warmup_epochs=0, num_last_epochs=0),
        ParamSchedulerHook(schedulers=[{"type": "ExponentialLR", "gamma": 0.5}]),
    ]


class TestSecondSchedule:
    @pytest.mark.parametrize("hook", make_hooks(), ids=lambda hook: hook.name)
    @pytest.mark.parametrize("kind", ["linear", "constant_with_warmup", "reduce_lr_on_plateau"])
    def test_scheduler_of_the_arguments_is_refused(self, tmp_path: Path, hook: Hook, kind: str) -> None:
        bus = RecordingBus([hook])
        expected = rf"lr_scheduler_type='{kind}'\. Set it to 'constant', or remove the hook"
        with pytest.raises(ConfigError, match=rf"hook '{hook.name}' .+ sets the learning rate, as does {expected}"):
            train(bus, tmp_path, lr_scheduler_type=kind)
        assert bus.emitted_points == []

    def test_scheduler_object_is_refused(self, tmp_path: Path) -> None:
        trainer = make_trainer(tmp_path)
        trainer.lr_scheduler = torch.optim.lr_scheduler.StepLR(trainer.optimizer, 2)
        HookBus(make_hooks()[:1]).attach(trainer)
        expected = r"as does the scheduler StepLR of the Trainer\. Pass no scheduler, and set"
        with pytest.raises(ConfigError, match=expected):
            trainer.train()

    def test_scheduler_of_a_momentum_is_accepted(self, tmp_path: Path) -> None:
        momentum = {"type": "LinearLR", "parameter": "momentum"}
        bus = HookBus([ParamSchedulerHook(schedulers=[momentum])])
        bridge, _ = train(bus, tmp_path, lr_scheduler_type="linear")
        assert bridge.run.outcome == "finished"


def record_rates(hook: Hook, directory: Path, stop: int = 0, **options: Any) -> Sequence[float]:
    """Return the learning rate of each step of two epochs of six batches with the constant schedule."""
    trainer, callback = make_trainer(directory), RecordRates()
    trainer.add_callback(callback)
    if stop:
        trainer.add_callback(StopTrainer(stop))
    HookBus([hook]).attach(trainer)
    trainer.train(**options)
    return callback.rates


class TestConstantSchedule:
    def test_scheduler_of_a_hook_is_not_reset(self, tmp_path: Path) -> None:
        hook = ParamSchedulerHook(schedulers=[{"type": "StepLR", "step_size": 4, "gamma": 0.5}], interval="step")
        assert record_rates(hook, tmp_path) == pytest.approx([*4 * [RATE], *4 * [RATE / 2], *4 * [RATE / 4]])

    def test_scheduler_of_a_hook_per_epoch_is_not_reset(self, tmp_path: Path) -> None:
        hook = ParamSchedulerHook(schedulers=[{"type": "ExponentialLR", "gamma": 0.5}])
        assert record_rates(hook, tmp_path) == pytest.approx([*6 * [RATE], *6 * [RATE / 2]])

    def test_warm_up_continues_after_a_resume(self, tmp_path: Path) -> None:
        def make_hook() -> Hook:
            warm_up = {"type": "LinearLR", "start_factor": 0.1, "total_iters": 9}
            return ParamSchedulerHook(schedulers=[warm_up], interval="step")

        # From a tenth to the whole in nine steps of a tenth.
        expected = [RATE * min(step, 10) / 10 for step in range(1, 13)]
        assert record_rates(make_hook(), tmp_path / "whole") == pytest.approx(expected)
        assert record_rates(make_hook(), tmp_path, stop=6) == pytest.approx(expected[:6])
        assert record_rates(make_hook(), tmp_path, resume_from_checkpoint=True) == pytest.approx(expected[6:])

    def test_trainer_logs_the_learning_rate_of_the_hook(self, tmp_path: Path) -> None:
        hook = ParamSchedulerHook(schedulers=[{"type": "StepLR", "step_size": 4, "gamma": 0.5}], interval="step")
        _, trainer = train(HookBus([hook]), tmp_path, logging_strategy="steps", logging_steps=1)
        rates = [entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry]
        assert rates == pytest.approx([*4 * [RATE], *4 * [RATE / 2], *4 * [RATE / 4]])

    def test_scheduler_of_the_trainer_resets_what_others_set(self, tmp_path: Path) -> None:
        bus, rates = HookBus(), []

        @bus.on("after_optimizer_step")
        def change(optimizer: Any) -> None:
            optimizer.param_groups[0]["lr"] = 7.0

        bus.on("before_train_iter", name="record")(lambda run: rates.append(run.optimizer.param_groups[0]["lr"]))
        train(bus, tmp_path)
        assert rates == 12 * [RATE]
