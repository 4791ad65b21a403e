"""Tests for `hookbus_transformers.bridge`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="transformers is not installed: run `make bridges HOST=transformers`")

from hookbus import Hook, HookBus
from hookbus.errors import ConfigError
from hookbus.testing import HostTask, RecordingBus, TaskError

from .adapter import TaskTrainer, TransformersAdapter, make_arguments


def train(hooks: list[Any], directory: Path, task: HostTask | None = None, **options: Any) -> tuple[Any, Any]:
    """Return the bridge and the Trainer after a training."""
    task = task or HostTask()
    trainer = TaskTrainer(task, make_arguments(directory / "host", task, **options))
    bridge = HookBus(hooks).attach(trainer)
    trainer.train()
    return bridge, trainer


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

    def test_second_training_is_another_run(self, tmp_path: Path) -> None:
        bridge, trainer = train([], tmp_path)
        first = bridge.run
        trainer.train()
        assert bridge.run is not first
        assert (bridge.run.outcome, bridge.run.iters_done) == ("finished", 12)


class TestAttach:
    def test_second_bus_is_refused_until_the_first_is_detached(self, tmp_path: Path) -> None:
        trainer = TaskTrainer(HostTask(), make_arguments(tmp_path, HostTask()))
        bridge = HookBus().attach(trainer)
        with pytest.raises(ConfigError, match=r"connected with a bus already\. Call detach\(\)"):
            HookBus().attach(trainer)
        bridge.detach()
        bridge.detach()
        HookBus().attach(trainer).detach()
        assert not {"train", "training_step", "evaluate", "_inner_training_loop"} & vars(trainer).keys()

    def test_detached_trainer_trains_without_hooks(self, tmp_path: Path) -> None:
        bus, task = RecordingBus(), HostTask(epochs=1)
        trainer = TaskTrainer(task, make_arguments(tmp_path, task))
        bus.attach(trainer).detach()
        trainer.train()
        assert bus.emitted_points == []


class StopAt(Hook):
    """Request a stop in an iteration."""

    def after_train_iter(self, run: Any) -> None:
        if run.iters_done == 3:
            run.request_stop("enough")


class TestStop:
    def test_training_ends_after_the_optimizer_step(self, tmp_path: Path) -> None:
        bridge, trainer = train([StopAt()], tmp_path, HostTask(accumulate=2))
        assert (bridge.run.outcome, bridge.run.stop_reasons) == ("stopped", ["stop_at: enough"])
        assert (bridge.run.iters_done, bridge.run.steps_done, trainer.state.global_step) == (4, 2, 2)
