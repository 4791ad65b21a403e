"""Tests for `hookbus_transformers.bridge`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed: run `make bridges HOST=transformers`")

from transformers import EarlyStoppingCallback, TrainerCallback

from hookbus import HookBus
from hookbus.errors import ConfigError
from hookbus.testing import HostTask, RecordingBus, TaskError
from hookbus_early_stopping import EarlyStoppingHook

from .adapter import TransformersAdapter
from .toys import StopTrainer, make_trainer, train


def request_at(bus: HookBus, point: str, request: str, iteration: int, *arguments: Any) -> None:
    """Make a request at a point after an iteration."""

    @bus.on(point, name="act")
    def act(run: Any) -> None:
        if run.iters_done == iteration:
            getattr(run, f"request_{request}")(*arguments)


class TestTraining:
    def test_events_of_an_epoch_are_those_of_a_loop_of_hookbus(self, tmp_path: Path) -> None:
        bus = RecordingBus()
        TransformersAdapter().train(bus, HostTask(epochs=1, accumulate=3), tmp_path)

        micro_batch = ["before_train_iter", "after_forward", "after_backward"]
        step = [*micro_batch, "before_optimizer_step", "after_optimizer_step", "after_train_iter"]
        group = [*micro_batch, "after_train_iter", *micro_batch, "after_train_iter", *step]
        evaluation = ["before_val", "before_val_epoch", *3 * ["before_val_iter", "after_val_iter"], "after_val_epoch"]
        assert bus.emitted_points == [
            *["before_run", "before_train", "before_epoch", "before_train_epoch"],
            *[*group, *group, "after_train_epoch"],
            *[*evaluation, "after_val", "after_epoch", "before_save_checkpoint", "after_save_checkpoint"],
            *["after_train", "after_run", "cleanup"],
        ]

    def test_failure_of_the_task_ends_the_run(self, tmp_path: Path) -> None:
        bus = RecordingBus()
        with pytest.raises(TaskError):
            TransformersAdapter().train(bus, HostTask(fail_at=2), tmp_path)
        assert bus.emitted_points[-3:] == ["on_exception", "after_run", "cleanup"]
        assert bus.current.outcome == "failed"

    def test_failure_of_an_evaluation_ends_the_run(self, tmp_path: Path) -> None:
        bus = RecordingBus()
        trainer = make_trainer(tmp_path)
        trainer.compute_metrics = lambda _: 1 / 0
        bus.attach(trainer)
        with pytest.raises(ZeroDivisionError):
            trainer.train()
        assert (bus.current.outcome, bus.current.validating) == ("failed", False)

    def test_keyboard_interrupt_is_the_outcome_interrupted(self, tmp_path: Path) -> None:
        bus = HookBus()

        @bus.on("after_train_iter")
        def interrupt() -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            train(bus, tmp_path)
        assert bus.current.outcome == "interrupted"

    def test_training_after_a_failed_one_is_complete(self, tmp_path: Path) -> None:
        bus, task = RecordingBus(), HostTask(fail_at=2)
        trainer = make_trainer(tmp_path, task)
        bus.attach(trainer)
        with pytest.raises(TaskError):
            trainer.train()
        task.fail_at = None
        trainer.train()
        assert (bus.current.outcome, bus.current.iters_done) == ("finished", 12)

    def test_second_training_is_another_run(self, tmp_path: Path) -> None:
        bridge, trainer = train(HookBus(), tmp_path)
        first = bridge.run
        trainer.train()
        assert bridge.run is not first
        assert (bridge.run.outcome, bridge.run.iters_done) == ("finished", 12)

    def test_smaller_batch_after_an_out_of_memory_error_begins_another_run(self, tmp_path: Path) -> None:
        bus = RecordingBus()
        trainer = make_trainer(tmp_path, auto_find_batch_size=True)
        bus.attach(trainer)

        @bus.on("after_train_iter")
        def fail_once(run: Any) -> None:
            if bus.emitted_points.count("before_run") == 1:
                raise RuntimeError("CUDA out of memory.")

        trainer.train()
        assert bus.emitted_points.count("cleanup") == 2
        assert (bus.current.outcome, bus.current.iters_done) == ("finished", 12)

    @pytest.mark.parametrize(
        ("options", "limit"),
        [
            ({}, (2, None)),
            ({"max_steps": 2}, (None, 4)),  # 2 steps of 2 micro-batches
            ({"max_steps": 4}, (None, 8)),  # an epoch of 6, and 1 of 3 steps
            ({"max_steps": 9}, (3, None)),
            ({"num_train_epochs": 1.5}, (None, 10)),  # 5 of 6 steps, in which the second epoch begins
        ],
    )
    def test_limit_of_the_run_is_that_of_the_training(
        self, tmp_path: Path, options: dict[str, Any], limit: tuple[int | None, int | None]
    ) -> None:
        bridge, trainer = train(HookBus(), tmp_path, HostTask(accumulate=2), **options)
        run = bridge.run
        assert (run.max_epochs, run.max_iters) == limit
        assert (run.outcome, run.steps_done) == ("finished", trainer.state.global_step)
        assert run.iters_done == (limit[1] or 6 * (limit[0] or 0))


class TestAttach:
    def test_second_bus_is_refused_until_the_first_is_detached(self, tmp_path: Path) -> None:
        trainer = make_trainer(tmp_path)
        bridge = HookBus().attach(trainer)
        with pytest.raises(ConfigError, match=r"connected with a bus already\. Call detach\(\)"):
            HookBus().attach(trainer)
        bridge.detach()
        bridge.detach()
        HookBus().attach(trainer).detach()
        assert not {"training_step", "compute_loss", "evaluate", "_inner_training_loop"} & vars(trainer).keys()

    def test_detached_trainer_trains_without_hooks(self, tmp_path: Path) -> None:
        bus = RecordingBus()
        trainer = make_trainer(tmp_path, HostTask(epochs=1))
        bus.attach(trainer).detach()
        trainer.train()
        assert bus.emitted_points == []

    def test_callback_follows_the_one_that_schedules_evaluations(self, tmp_path: Path) -> None:
        trainer = make_trainer(tmp_path)
        HookBus().attach(trainer)
        names = [type(callback).__name__ for callback in trainer.callback_handler.callbacks]
        assert names[:2] == ["DefaultFlowCallback", "BridgeCallback"]


class TestStop:
    def test_training_ends_after_the_optimizer_step(self, tmp_path: Path) -> None:
        bus = HookBus()
        request_at(bus, "after_train_iter", "stop", 3, "enough")
        bridge, trainer = train(bus, tmp_path, HostTask(accumulate=2))
        assert (bridge.run.outcome, bridge.run.stop_reasons) == ("stopped", ["act: enough"])
        assert (bridge.run.iters_done, bridge.run.steps_done, trainer.state.global_step) == (4, 2, 2)

    def test_stop_after_the_evaluation_of_an_epoch_prevents_the_next(self, tmp_path: Path) -> None:
        bus = RecordingBus()
        request_at(bus, "after_val", "stop", 6)
        bridge, _ = train(bus, tmp_path)
        assert (bridge.run.outcome, bridge.run.iters_done, bridge.run.epochs_done) == ("stopped", 6, 1)
        assert bus.emitted_points.count("before_epoch") == 1

    def test_stop_after_an_evaluation_within_an_epoch_ends_it(self, tmp_path: Path) -> None:
        bus = HookBus()
        request_at(bus, "after_val", "stop", 2)
        bridge, trainer = train(bus, tmp_path, eval_strategy="steps", eval_steps=2, save_strategy="no")
        assert (bridge.run.iters_done, bridge.run.epochs_done, trainer.state.global_step) == (2, 0, 2)

    def test_stop_before_the_first_iteration_ends_with_the_first_step(self, tmp_path: Path) -> None:
        bus = HookBus()
        request_at(bus, "before_epoch", "stop", 0)
        bridge, _ = train(bus, tmp_path, HostTask(accumulate=3))
        assert (bridge.run.outcome, bridge.run.iters_done, bridge.run.steps_done) == ("stopped", 3, 1)

    def test_early_stopping_hook_stops_the_trainer(self, tmp_path: Path) -> None:
        hook = EarlyStoppingHook(monitor="loss", mode="max", patience=1)
        bridge, trainer = train(HookBus([hook]), tmp_path, HostTask(epochs=9), save_strategy="no")
        assert bridge.run.outcome == "stopped"
        assert trainer.state.epoch == bridge.run.epochs_done == 2

    def test_callback_that_stops_the_trainer_stops_the_run(self, tmp_path: Path) -> None:
        trainer = make_trainer(tmp_path)
        trainer.add_callback(StopTrainer(2))
        bridge = HookBus().attach(trainer)
        trainer.train()
        run = bridge.active_run
        assert (run.outcome, run.stop_reasons) == ("stopped", ["loop: a callback of the Trainer"])
        assert (run.iters_done, run.epochs_done) == (2, 0)

    def test_callback_that_stops_after_an_evaluation_stops_the_run(self, tmp_path: Path) -> None:
        trainer = make_trainer(
            tmp_path, HostTask(epochs=9), metric_for_best_model="loss", greater_is_better=True, save_strategy="epoch"
        )
        trainer.add_callback(EarlyStoppingCallback(1))
        trainer.args.load_best_model_at_end = True
        bridge = HookBus().attach(trainer)
        trainer.train()
        assert (bridge.active_run.outcome, bridge.active_run.epochs_done) == ("stopped", 2)

    def test_aborted_run_is_neither_evaluated_nor_saved(self, tmp_path: Path) -> None:
        bus = RecordingBus()
        request_at(bus, "after_train_iter", "abort", 3)
        bridge, _ = train(bus, tmp_path)
        assert bridge.run.outcome == "aborted"
        assert not {"before_val", "after_save_checkpoint"} & set(bus.emitted_points)
        assert not list((tmp_path / "host").glob("checkpoint-*"))


class TestStopEpoch:
    def test_epoch_ends_after_the_step_and_is_complete(self, tmp_path: Path) -> None:
        bus = HookBus()
        request_at(bus, "after_train_iter", "stop_epoch", 2)
        bridge, trainer = train(bus, tmp_path, HostTask(accumulate=2))
        run = bridge.run
        assert (run.outcome, run.epochs_done, run.iters_done, trainer.state.global_step) == ("finished", 2, 8, 4)


class TestValidate:
    @pytest.mark.parametrize("point", ["after_train_iter", "after_train_epoch", "after_epoch"])
    def test_trainer_evaluates_on_request(self, tmp_path: Path, point: str) -> None:
        bus = RecordingBus()
        request_at(bus, point, "validation", 6)
        bridge, trainer = train(bus, tmp_path, eval_strategy="no", save_strategy="no")
        assert bus.emitted_points.count("before_val") == 1
        assert set(bridge.run.metrics.results) == {"val/loss"}
        assert [entry["step"] for entry in trainer.state.log_history if "eval_loss" in entry] == [6]

    def test_requested_evaluation_of_the_step_is_not_repeated(self, tmp_path: Path) -> None:
        bus = RecordingBus()
        request_at(bus, "after_train_iter", "validation", 2)
        train(bus, tmp_path, HostTask(epochs=1), eval_strategy="steps", eval_steps=2, save_strategy="no")
        assert bus.emitted_points.count("before_val") == 3

    def test_request_at_the_end_of_the_training_is_carried_out_at_once(self, tmp_path: Path) -> None:
        bus = RecordingBus()
        request_at(bus, "after_train", "validation", 12)
        train(bus, tmp_path, eval_strategy="no", save_strategy="no")
        assert bus.emitted_points[-4:] == ["after_val_epoch", "after_val", "after_run", "cleanup"]


class TestSave:
    @pytest.mark.parametrize("strategy", ["no", "best"])
    def test_trainer_saves_on_request(self, tmp_path: Path, strategy: str) -> None:
        bus, options = RecordingBus(), {}
        request_at(bus, "after_train_iter", "save", 3)
        if strategy == "best":  # the first evaluation is the best, the others are not
            options = {"eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "constant"}
        trainer = make_trainer(tmp_path, save_strategy=strategy, **options)
        trainer.compute_metrics = lambda _: {"constant": 1.0}
        bus.attach(trainer)
        trainer.train()
        saved = sorted(path.name for path in (tmp_path / "host").glob("checkpoint-*"))
        assert saved == (["checkpoint-3"] if strategy == "no" else ["checkpoint-1", "checkpoint-3"])
        assert (tmp_path / "host/checkpoint-3/hookbus.pth").exists()

    def test_request_at_the_end_of_the_training_is_carried_out_at_once(self, tmp_path: Path) -> None:
        bus = RecordingBus()
        request_at(bus, "after_train", "save", 12)
        train(bus, tmp_path, save_strategy="no")
        assert (tmp_path / "host/checkpoint-12/hookbus.pth").exists()
        assert bus.get_arguments("after_save_checkpoint")[0]["path"] == tmp_path / "host/checkpoint-12"


class CallEvaluate(TrainerCallback):
    """Evaluate in a callback, in which no request is in progress."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 2:
            self.trainer.evaluate()


def test_evaluation_of_a_callback_is_a_validation(tmp_path: Path) -> None:
    bus = RecordingBus()
    trainer = make_trainer(tmp_path, HostTask(epochs=1), eval_strategy="no")
    trainer.add_callback(CallEvaluate(trainer))
    bus.attach(trainer)
    trainer.train()
    assert bus.emitted_points.count("after_val") == 1
    assert torch.is_grad_enabled()
