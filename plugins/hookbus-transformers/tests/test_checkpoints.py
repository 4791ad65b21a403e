"""Tests for `hookbus_transformers.checkpoints`."""

from __future__ import annotations

import json
import logging
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed: run `make bridges HOST=transformers`")

from transformers import TrainerCallback

from hookbus import HookBus, Run
from hookbus.errors import CheckpointCorruptedError, ConfigError
from hookbus.testing import HostTask, RecordingBus
from hookbus_checkpoint import CheckpointHook
from hookbus_ema import EMAHook
from hookbus_logger import JsonlHook
from hookbus_transformers.checkpoints import FILE, read_state

from .toys import StopTrainer, make_classifier, make_labeled_texts, make_model_trainer, make_trainer, train

STEPS = {"eval_strategy": "steps", "save_strategy": "steps"}


def make_bus() -> RecordingBus:
    return RecordingBus([EMAHook(momentum=0.5, warm_up=0), JsonlHook(interval=2)])


def read_records(directory: Path) -> list[dict[str, Any]]:
    """Return the records of a run without their times."""
    lines = (directory / "hookbus/logs/metrics.jsonl").read_text().splitlines()
    return [{key: value for key, value in json.loads(line).items() if key != "time"} for line in lines]


def train_and_stop(directory: Path, stop_at: int | None, bus: HookBus, **options: Any) -> Any:
    """Return the bridge of a training of three epochs of 3 steps, which a callback may stop."""
    task = HostTask(epochs=3, accumulate=2)
    trainer = make_trainer(directory, task, **options)
    bridge = bus.attach(trainer, work_dir=directory / "hookbus")
    if stop_at is not None:
        trainer.add_callback(StopTrainer(stop_at))
    torch.manual_seed(0)
    trainer.train(resume_from_checkpoint=True if any(directory.glob("host/checkpoint-*")) else None)
    return bridge


class TestRefusedCheckpoint:
    @pytest.mark.parametrize("error", [None, ValueError])
    def test_refused_checkpoint_replaces_no_other(self, tmp_path: Path, error: type[Exception] | None) -> None:
        bus, trainer = HookBus(), make_trainer(tmp_path, HostTask(epochs=3), save_total_limit=1)
        reported = []

        @bus.on("before_save_checkpoint")
        def refuse(run: Run) -> None:
            if run.iters_done > 6 and error is not None:
                raise error
            if run.iters_done > 6:
                run.request_abort()

        class Reports(TrainerCallback):
            def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                reported.append(state.global_step)

        trainer.add_callback(Reports())
        bridge = bus.attach(trainer)
        with nullcontext() if error is None else pytest.raises(error):
            trainer.train()
        assert (bridge.run.outcome, bridge.run.iters_done) == ("aborted" if error is None else "failed", 12)
        assert ([path.name for path in tmp_path.glob("host/checkpoint-*")], reported) == (["checkpoint-6"], [6])


class TestResume:
    @pytest.mark.parametrize(
        ("stop_at", "options"),
        [
            pytest.param(3, {}, id="after an epoch"),
            pytest.param(3, {**STEPS, "eval_steps": 3, "save_steps": 3}, id="at the last step of an epoch"),
        ],
    )
    def test_resumed_training_equals_the_uninterrupted_one(
        self, tmp_path: Path, stop_at: int, options: dict[str, Any]
    ) -> None:
        whole = train_and_stop(tmp_path / "whole", None, make_bus(), **options)
        train_and_stop(tmp_path / "parts", stop_at, make_bus(), **options)
        resumed = train_and_stop(tmp_path / "parts", None, make_bus(), **options)

        averages = [bridge.run.weights.averaged() for bridge in (whole, resumed)]
        assert all(torch.equal(averages[0][name], averages[1][name]) for name in averages[0])
        weights = [bridge.host.model.state_dict() for bridge in (whole, resumed)]
        assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
        assert (resumed.run.epochs_done, resumed.run.iters_done, resumed.run.steps_done) == (3, 18, 9)
        assert resumed.run.metrics.results == whole.run.metrics.results
        assert read_records(tmp_path / "parts") == read_records(tmp_path / "whole")

    def test_training_that_resumes_within_an_epoch_equals_the_uninterrupted_one(self, tmp_path: Path) -> None:
        def train_classifier(directory: Path, stop_at: int | None) -> Any:
            trainer = make_model_trainer(
                make_classifier(), directory, make_labeled_texts(), save_strategy="steps", save_steps=1
            )
            if stop_at is not None:
                trainer.add_callback(StopTrainer(stop_at))
            bridge = HookBus([EMAHook(momentum=0.5, warm_up=0)]).attach(trainer)
            trainer.train(resume_from_checkpoint=True if any(directory.glob("checkpoint-*")) else None)
            return bridge.run

        whole = train_classifier(tmp_path / "whole", None)
        assert train_classifier(tmp_path / "parts", 3).iters_done == 3
        resumed = train_classifier(tmp_path / "parts", None)
        average = resumed.weights.averaged()
        assert all(torch.equal(average[name], value) for name, value in whole.weights.averaged().items())
        assert (resumed.epochs_done, resumed.iters_done) == (2, 8)

    def test_epoch_within_which_a_training_resumes_continues(self, tmp_path: Path) -> None:
        options = {"save_strategy": "steps", "save_steps": 1}
        train_and_stop(tmp_path, 4, make_bus(), **options)
        bus = make_bus()
        bridge = train_and_stop(tmp_path, None, bus, **options)
        indices = [arguments["batch_idx"] for arguments in bus.get_arguments("before_train_iter")]
        assert indices == [2, 3, 4, 5, 0, 1, 2, 3, 4, 5]
        assert (bridge.run.epochs_done, bridge.run.iters_done, bridge.run.outcome) == (3, 18, "finished")

    def test_epoch_whose_last_step_was_saved_ends_before_the_next(self, tmp_path: Path) -> None:
        options = {"save_strategy": "steps", "save_steps": 3}
        train_and_stop(tmp_path, 3, make_bus(), **options)
        bus = make_bus()
        train_and_stop(tmp_path, None, bus, **options)
        begin = bus.emitted_points.index("before_epoch")
        epoch = ["before_epoch", "before_train_epoch", "after_train_epoch", "after_epoch"]
        assert bus.emitted_points[begin : begin + 7] == [*epoch, *epoch[:2], "before_train_iter"]

    def test_checkpoint_without_state_is_reported(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        trainer = make_trainer(tmp_path)
        trainer.add_callback(StopTrainer(6))
        trainer.train()
        bridge, _ = train(HookBus(), tmp_path, resume=True)
        assert "was saved without hookbus: the hooks start from their initial state" in caplog.text
        assert (bridge.run.iters_done, bridge.run.outcome) == (6, "finished")

    def test_corrupted_state_is_refused_before_the_training(self, tmp_path: Path) -> None:
        train(HookBus(), tmp_path)
        path = tmp_path / "host/checkpoint-12" / FILE
        path.write_bytes(path.read_bytes()[:-9])
        bus = RecordingBus()
        with pytest.raises(CheckpointCorruptedError, match=r"checkpoint-12/hookbus\.pth"):
            train(bus, tmp_path, resume=True)
        assert bus.emitted_points == []


class TestFile:
    def test_file_is_read_as_data(self, tmp_path: Path) -> None:
        train(make_bus_without_files(), tmp_path, HostTask(epochs=1))
        path = tmp_path / "host/checkpoint-6" / FILE
        state = torch.load(path, weights_only=True)
        assert state.keys() >= {"meta", "hooks", "loop", "rng", "ema_state_dict"}
        assert not {"state_dict", "optimizer"} & state.keys()
        assert read_state(path.parent).keys() == state.keys()

    def test_save_of_the_model_alone_contains_no_state(self, tmp_path: Path) -> None:
        bus = RecordingBus()
        trainer = make_trainer(tmp_path, HostTask(epochs=1), save_strategy="no")
        bus.on("after_train_epoch")(lambda: trainer.save_model(str(tmp_path / "model")))
        bus.attach(trainer)
        trainer.train()
        assert (tmp_path / "model/model.safetensors").exists()
        assert not (tmp_path / "model" / FILE).exists()
        assert "before_save_checkpoint" not in bus.emitted_points

    def test_listener_adds_to_the_state(self, tmp_path: Path) -> None:
        bus, loaded = HookBus(), []
        bus.on("before_save_checkpoint", name="save")(lambda checkpoint: checkpoint.update(extra=7))
        bus.on("after_load_checkpoint", name="load")(lambda checkpoint: loaded.append(checkpoint["extra"]))
        train(bus, tmp_path, HostTask(epochs=1))
        train(bus, tmp_path, HostTask(epochs=2), resume=True)
        assert loaded == [7]


class TestLoadBest:
    def test_averaged_weights_that_were_evaluated_are_loaded(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.INFO, "hookbus"):
            bridge, trainer = train(
                HookBus([EMAHook(momentum=0.5, warm_up=0)]),
                tmp_path,
                HostTask(epochs=3),
                load_best_model_at_end=True,
                greater_is_better=True,  # the first epoch
            )
        assert trainer.state.best_model_checkpoint.endswith("checkpoint-6")
        average = read_state(trainer.state.best_model_checkpoint)["ema_state_dict"]
        assert all(torch.equal(average[name], value) for name, value in trainer.model.state_dict().items())
        assert trainer.evaluate()["eval_loss"] == trainer.state.best_metric
        assert "The averaged weights of " in caplog.text
        assert bridge.run.outcome == "finished"

    def test_weights_of_a_training_without_averages_are_those_of_the_trainer(self, tmp_path: Path) -> None:
        _, trainer = train(HookBus(), tmp_path, load_best_model_at_end=True)
        assert trainer.evaluate()["eval_loss"] == trainer.state.best_metric


@pytest.mark.filterwarnings("ignore:.*is_activation_checkpointing.*:FutureWarning")  # peft uses the former name
@pytest.mark.filterwarnings("ignore:Could not find a config file in")  # peft, of a model that was built, not loaded
class TestAdapters:
    def test_training_of_an_adapter_resumes(self, tmp_path: Path) -> None:
        peft = pytest.importorskip("peft", reason="peft is not installed")

        def train_adapter(directory: Path, stop_at: int | None) -> Any:
            torch.manual_seed(0)
            config = peft.LoraConfig(target_modules=["query"], r=2, lora_dropout=0.1, task_type="SEQ_CLS")
            model = peft.get_peft_model(make_classifier(), config)
            trainer = make_model_trainer(
                model, directory, make_labeled_texts(), save_strategy="epoch", eval_strategy="epoch",
                load_best_model_at_end=True, greater_is_better=True, metric_for_best_model="loss",
            )  # fmt: skip
            if stop_at is not None:
                trainer.add_callback(StopTrainer(stop_at))
            bridge = HookBus([EMAHook(momentum=0.5, warm_up=0)]).attach(trainer)
            trainer.train(resume_from_checkpoint=True if any(directory.glob("checkpoint-*")) else None)
            return bridge

        whole = train_adapter(tmp_path / "whole", None)
        train_adapter(tmp_path / "parts", 4)
        resumed = train_adapter(tmp_path / "parts", None)
        averages = [bridge.run.weights.averaged() for bridge in (whole, resumed)]
        assert any("lora_A" in name for name in averages[0])
        assert all(torch.equal(averages[0][name], averages[1][name]) for name in averages[0])
        best = read_state(whole.host.state.best_model_checkpoint)["ema_state_dict"]
        loaded = whole.host.model.state_dict()
        assert all(torch.equal(loaded[name], best[name]) for name in best if "lora" in name)


def test_checkpoint_hook_is_refused(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    with pytest.raises(ConfigError, match="Transformers Trainer saves the state of the hooks in its own"):
        HookBus([CheckpointHook()]).attach(trainer)


def make_bus_without_files() -> HookBus:
    return HookBus([EMAHook(momentum=0.5, warm_up=0)])
