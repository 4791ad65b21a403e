"""Tests for `hookbus_transformers.evaluation`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed: run `make bridges HOST=transformers`")

from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, T5Config, T5ForConditionalGeneration

from hookbus import HookBus
from hookbus.testing import HostTask, RecordingBus
from hookbus_ema import EMAHook
from hookbus_eval import EvalHook

from .toys import make_classifier, make_labeled_texts, make_model_trainer, make_texts, make_trainer, train


class TestResults:
    def test_metrics_are_those_of_the_trainer_without_prefix(self, tmp_path: Path) -> None:
        bus = RecordingBus()
        trainer = make_trainer(tmp_path, HostTask(epochs=1))
        trainer.compute_metrics = lambda _: {"accuracy": 0.5, "names": ["a", "b"]}
        bus.attach(trainer)
        trainer.train()
        (entry,) = [entry for entry in trainer.state.log_history if "eval_loss" in entry]
        assert dict(bus.current.metrics.results) == {"val/loss": entry["eval_loss"], "val/accuracy": 0.5}
        assert bus.get_arguments("after_val_epoch")[0]["metrics"] == bus.current.metrics.results

    def test_several_datasets_are_loaders_of_one_validation(self, tmp_path: Path) -> None:
        bus, data = RecordingBus(), {"first": make_labeled_texts(8), "second": make_labeled_texts(4)}
        trainer = make_model_trainer(
            make_classifier(), tmp_path, make_labeled_texts(), eval_dataset=data, eval_strategy="epoch"
        )
        bus.attach(trainer)
        trainer.train()
        assert set(bus.current.metrics.results) == {"val/first/loss", "val/second/loss"}
        validation = bus.emitted_points[bus.emitted_points.index("before_val") :]
        assert validation[:10] == [
            *["before_val", "before_val_epoch", *2 * ["before_val_iter", "after_val_iter"], "after_val_epoch"],
            *["before_val_epoch", "before_val_iter", "after_val_iter"],
        ]
        names = [arguments["dataloader_name"] for arguments in bus.get_arguments("before_val_iter")]
        assert names == [*["first", "first", "second"] * 2]

    def test_evaluation_with_another_prefix_is_no_validation(self, tmp_path: Path) -> None:
        bus = RecordingBus()
        trainer = make_trainer(tmp_path, HostTask(epochs=1), eval_strategy="no")
        bus.on("after_train_epoch")(lambda: trainer.evaluate(metric_key_prefix="test"))
        bus.attach(trainer)
        trainer.train()
        assert "before_val" not in bus.emitted_points

    @pytest.mark.parametrize("has_data", [True, False])
    def test_run_can_validate_if_the_trainer_has_data(self, tmp_path: Path, has_data: bool) -> None:
        bus, answers = HookBus(), list[bool]()
        trainer = make_trainer(tmp_path, HostTask(epochs=1), eval_strategy="no")
        if not has_data:
            trainer.eval_dataset = None
        bus.on("after_train_epoch")(lambda run: answers.append(run.can_validate))
        bus.attach(trainer)
        trainer.train()
        assert answers == [has_data]

    def test_prefix_of_validations_can_be_chosen(self, tmp_path: Path) -> None:
        bus = RecordingBus()
        trainer = make_trainer(tmp_path, HostTask(epochs=1), eval_strategy="no")
        bridge = bus.attach(trainer, metric_prefix="test_")
        assert (bridge.is_validation("test_"), bridge.is_validation("eval_")) == (True, False)  # type: ignore[attr-defined]


class TestWeights:
    def test_averaged_weights_are_evaluated(self, tmp_path: Path) -> None:
        bus, evaluated, trained = HookBus([ema := EMAHook(momentum=0.5, warm_up=0)]), [], []

        @bus.on("after_val_iter")
        def record(run: Any) -> None:
            evaluated.append(next(run.model.parameters()).clone())

        @bus.on("before_val", name="raw", priority=0)
        def compare(run: Any) -> None:
            trained.append(next(iter(run.weights.raw().values())).clone())

        bridge, trainer = train(bus, tmp_path, HostTask(epochs=1))
        name, average = next(iter(bridge.run.weights.averaged().items()))
        assert ema is not None
        assert name == "layers.0.weight"
        assert all(torch.equal(weight, average) for weight in evaluated)
        raw = next(trainer.model.parameters())
        assert torch.equal(raw, trained[0])
        assert not torch.equal(raw, average)

    def test_evaluation_after_the_training_uses_the_weights_of_the_model(self, tmp_path: Path) -> None:
        bus = RecordingBus([EMAHook(momentum=0.5, warm_up=0)])
        bridge, trainer = train(bus, tmp_path)
        number = len(bus.emitted_points)
        raw = trainer.evaluate()["eval_loss"]
        with bridge.run.weights.applied():
            averaged = trainer.evaluate()["eval_loss"]
        assert averaged == bridge.run.metrics.results["val/loss"] != raw
        assert trainer.evaluate()["eval_loss"] == raw
        assert len(bus.emitted_points) == number

    def test_prediction_during_the_training_is_no_validation(self, tmp_path: Path) -> None:
        bus = RecordingBus()
        trainer = make_trainer(tmp_path, HostTask(epochs=1), eval_strategy="no")
        bus.on("after_train_epoch")(lambda: trainer.predict(trainer.task.val_data()))
        trainer.get_test_dataloader = trainer.get_eval_dataloader
        bus.attach(trainer)
        trainer.train()
        assert "before_val_iter" not in bus.emitted_points


class TestSanityCheck:
    def test_results_of_eval_on_start_are_discarded(self, tmp_path: Path) -> None:
        bus, flags, results = HookBus(), [], []
        bus.on("after_val", name="flags")(lambda run: flags.append(run.sanity_checking))
        bus.on("before_train_epoch", name="results")(lambda run: results.append(dict(run.metrics.results)))
        train(bus, tmp_path, HostTask(epochs=1), eval_on_start=True)
        assert flags == [True, False]
        assert results == [{}]

    def test_validation_that_a_hook_schedules_before_the_training_is_a_sanity_check(self, tmp_path: Path) -> None:
        bus, flags = RecordingBus([EvalHook(interval=2, before_train=True)]), []
        bus.on("after_val")(lambda run: flags.append(run.sanity_checking))
        bridge, _ = train(bus, tmp_path, eval_strategy="no", save_strategy="no")
        assert flags == [True, False]
        assert bridge.run.outcome == "finished"


class TestBatches:
    @pytest.mark.parametrize("has_metrics", [False, True])
    def test_outputs_are_passed_whether_or_not_metrics_are_computed(self, tmp_path: Path, has_metrics: bool) -> None:
        bus = RecordingBus()
        trainer = make_trainer(tmp_path, HostTask(epochs=1))
        trainer.compute_metrics = (lambda _: {}) if has_metrics else None
        bus.attach(trainer)
        trainer.train()
        batches = bus.get_arguments("after_val_iter")
        assert [set(entry["batch"]) for entry in batches] == [{"inputs", "labels"}] * 3
        assert [entry["outputs"]["logits"].shape for entry in batches] == [(4, 3)] * 3
        assert all(not entry["outputs"]["loss"].requires_grad for entry in batches)

    def test_generated_sequences_are_evaluated(self, tmp_path: Path) -> None:
        torch.manual_seed(0)
        config = T5Config(
            vocab_size=20, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, decoder_start_token_id=0,
            dropout_rate=0.0,
        )  # fmt: skip
        bus = RecordingBus([EMAHook(momentum=0.5, warm_up=0)])
        trainer = make_model_trainer(
            T5ForConditionalGeneration(config),
            tmp_path,
            make_texts([6] * 8),
            Seq2SeqTrainer,
            arguments=Seq2SeqTrainingArguments,
            compute_metrics=lambda prediction: {"length": float(prediction.predictions.shape[1])},
            eval_strategy="epoch",
            predict_with_generate=True,
            generation_max_length=5,
        )
        bus.attach(trainer)
        trainer.train()
        assert set(bus.current.metrics.results) == {"val/length", "val/loss"}
        assert bus.current.metrics.results["val/length"] == 20  # the Trainer pads to the default of the model
        assert bus.get_arguments("after_val_iter")[0]["outputs"]["logits"].shape == (4, 20)
