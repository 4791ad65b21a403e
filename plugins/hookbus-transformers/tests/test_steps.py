"""Tests for `hookbus_transformers.steps`."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed: run `make bridges HOST=transformers`")

from transformers import BertForSequenceClassification, Trainer, TrainingArguments

from hookbus import HookBus
from hookbus.testing import HostTask, RecordingBus

from .toys import make_classifier, make_labeled_texts, make_language_model, make_model_trainer, make_texts, make_trainer


def get_weights(trainer: Any) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in trainer.model.parameters()]


class TestLoss:
    def test_loss_of_a_subclass_that_returns_no_outputs_is_reported(self, tmp_path: Path) -> None:
        class LossTrainer(Trainer):
            def compute_loss(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
                return model(**inputs).loss

        bus, received = HookBus(), []
        bus.on("after_train_iter")(lambda outputs: received.append(outputs))
        trainer = make_model_trainer(
            make_language_model(), tmp_path, make_texts([6, 6]), LossTrainer, num_train_epochs=1, eval_strategy="no"
        )
        bus.attach(trainer)
        total = trainer.train().training_loss
        assert [set(values) for values in received] == [{"loss"}]
        assert received[0]["loss"].item() == pytest.approx(total, rel=1e-6)

    def test_mean_over_micro_batches_is_the_loss_of_the_step(self, tmp_path: Path) -> None:
        # Micro-batches of 2 texts, with 10 and 4 tokens to predict: the model divides both losses by 14.
        texts, losses = make_texts([6, 6, 3, 3]), []
        trainer = make_model_trainer(
            make_language_model(), tmp_path, texts, num_train_epochs=1, gradient_accumulation_steps=2
        )
        bus = HookBus()
        bus.on("after_train_iter")(lambda loss: losses.append(loss.item()))
        bus.attach(trainer)
        total = trainer.train().training_loss

        assert len(losses) == 2
        assert sum(losses) / 2 == pytest.approx(total, rel=1e-6)

    @pytest.mark.parametrize(("declared", "factor"), [(None, 2), (False, 1)])
    def test_loss_of_a_model_that_ignores_the_number_of_items_is_that_of_the_trainer(
        self, tmp_path: Path, declared: bool | None, factor: int
    ) -> None:
        class Classifier(BertForSequenceClassification):
            def forward(self, input_ids: Any = None, labels: Any = None, **kwargs: Any) -> Any:
                return super().forward(input_ids=input_ids, labels=labels)

        model = Classifier(make_classifier().config)
        if declared is not None:
            model.accepts_loss_kwargs = declared
        trainer = make_model_trainer(
            model, tmp_path, make_labeled_texts(4), num_train_epochs=1, gradient_accumulation_steps=2
        )
        bus, losses, means = HookBus(), [], []

        @bus.on("after_train_iter")
        def record(loss: torch.Tensor, outputs: Any, batch: Any) -> None:
            losses.append(loss.item())
            means.append(torch.nn.functional.cross_entropy(outputs["logits"], batch["labels"]).item())

        bus.attach(trainer)
        total = trainer.train().training_loss
        assert sum(losses) / 2 == pytest.approx(total, rel=1e-6)
        assert losses == pytest.approx([factor * mean for mean in means], rel=1e-5)

    def test_loss_of_a_trainer_that_divides_it_is_that_of_the_micro_batch(self, tmp_path: Path) -> None:
        task, losses = HostTask(epochs=1, accumulate=3), []
        trainer = make_trainer(tmp_path, task)
        bus = HookBus()
        bus.on("after_train_iter")(lambda loss: losses.append(loss))
        bus.attach(trainer)
        trainer.train()
        assert torch.equal(torch.stack(losses), torch.stack(task.losses))

    @pytest.mark.parametrize("case", ["label_smoothing", "compute_loss_func"])
    def test_batch_keeps_the_labels_that_the_loss_removes(self, tmp_path: Path, case: str) -> None:
        options: dict[str, Any] = {"label_smoothing_factor": 0.1}
        if case == "compute_loss_func":
            cross_entropy = torch.nn.functional.cross_entropy
            options = {
                "compute_loss_func": lambda outputs, labels, num_items_in_batch: cross_entropy(outputs.logits, labels)
            }
        bus, batches = HookBus(), []
        trainer = make_model_trainer(make_classifier(), tmp_path, make_labeled_texts(4), num_train_epochs=1, **options)
        bus.on("after_forward")(lambda batch, outputs, loss: batches.append((batch, outputs, loss)))
        bus.attach(trainer)
        total = trainer.train().training_loss
        assert [set(batch) for batch, _, _ in batches] == [{"input_ids", "labels"}] * 2
        assert all(outputs["logits"].shape == (2, 2) and outputs["loss"] is loss for _, outputs, loss in batches)
        assert sum(loss.item() for _, _, loss in batches) / 2 == pytest.approx(total)

    def test_outputs_of_the_end_of_an_iteration_have_no_graph(self, tmp_path: Path) -> None:
        bus, received = HookBus(), []
        trainer = make_model_trainer(make_classifier(), tmp_path, make_labeled_texts(2), num_train_epochs=1)
        trainer.model.config.output_hidden_states = True
        bus.on("after_train_iter")(lambda outputs: received.append(outputs))
        bus.attach(trainer)
        trainer.train()
        (outputs,) = received
        tensors = [outputs["loss"], outputs["logits"], *outputs["hidden_states"]]
        assert not any(tensor.requires_grad for tensor in tensors)

    def test_training_step_without_compute_loss_is_reported_once(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Custom(Trainer):
            def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
                loss = model(**inputs).loss / self.current_gradient_accumulation_steps
                loss.backward()
                return loss.detach()

        bus, losses = RecordingBus(), []
        bus.on("after_train_iter")(lambda loss: losses.append(float(loss)))
        trainer = make_model_trainer(make_classifier(), tmp_path, make_labeled_texts(4), Custom, num_train_epochs=1)
        bus.attach(trainer)
        total = trainer.train().training_loss
        assert sum(losses) / 2 == pytest.approx(total)
        assert "after_forward" not in bus.emitted_points
        assert caplog.text.count("Custom.training_step does not call compute_loss") == 1


class TestGradients:
    def test_gradients_of_the_end_of_an_iteration_are_clipped(self, tmp_path: Path) -> None:
        bus = HookBus()
        norms: dict[str, list[float]] = {"after_backward": [], "before_optimizer_step": [], "after_train_iter": []}
        trainer = make_trainer(tmp_path, HostTask(epochs=1), max_grad_norm=0.01)

        def measure(point: str) -> None:
            @bus.on(point, name=point)
            def act(run: Any) -> None:
                gradients = [parameter.grad for parameter in run.model.parameters()]
                norms[point].append(torch.nn.utils.get_total_norm(gradients).item())

        for point in norms:
            measure(point)
        bus.attach(trainer)
        trainer.train()
        assert min(norms["after_backward"]) > 0.1
        assert norms["before_optimizer_step"] == pytest.approx([0.01] * 6, rel=1e-3)
        assert norms["after_train_iter"] == norms["before_optimizer_step"]

    def test_recomputed_activations_are_one_forward(self, tmp_path: Path) -> None:
        bus = RecordingBus()
        # Transformers 5.20 has renamed the setting.
        names = {field.name for field in dataclasses.fields(TrainingArguments)}
        setting = "activation_checkpointing" if "activation_checkpointing" in names else "gradient_checkpointing"
        trainer = make_model_trainer(
            make_classifier(), tmp_path, make_labeled_texts(4), num_train_epochs=1, **{setting: True}
        )
        bus.attach(trainer)
        trainer.train()
        assert bus.emitted_points.count("after_forward") == bus.emitted_points.count("after_backward") == 2


class TestReplacement:
    def test_batch_that_a_hook_replaces_is_trained_on(self, tmp_path: Path) -> None:
        bus, task = HookBus(), HostTask(epochs=1)
        bus.on("before_train_iter")(
            lambda run, batch: run.replace_batch({**batch, "inputs": torch.zeros_like(batch["inputs"])})
        )
        trainer = make_trainer(tmp_path, task)
        bus.attach(trainer)
        trainer.train()
        assert not torch.stack(task.inputs).any()

    def test_loss_that_a_hook_replaces_is_trained_on(self, tmp_path: Path) -> None:
        bus, losses = HookBus(), []
        bus.on("after_forward")(lambda run, loss: run.replace_loss(loss * 0))
        bus.on("after_train_iter", name="record")(lambda loss: losses.append(float(loss)))
        trainer = make_model_trainer(
            make_language_model(), tmp_path, make_texts([6] * 4), num_train_epochs=1, gradient_accumulation_steps=2
        )
        before = get_weights(trainer)
        bus.attach(trainer)
        total = trainer.train().training_loss
        assert (total, losses) == (0, [0, 0])
        assert all(torch.equal(a, b) for a, b in zip(before, get_weights(trainer), strict=True))


class TestSkip:
    @pytest.mark.parametrize("point", ["before_train_iter", "after_forward"])
    def test_skipped_micro_batch_adds_no_gradients(self, tmp_path: Path, point: str) -> None:
        bus = RecordingBus()

        @bus.on(point)
        def skip(run: Any) -> None:
            if run.iter % 2:
                run.request_skip_iter()

        trainer = make_trainer(tmp_path, HostTask(epochs=1, accumulate=2))
        bus.attach(trainer)
        trainer.train()
        assert bus.current.steps_done == 3
        assert bus.emitted_points.count("after_backward") == 3
        assert bus.emitted_points.count("after_train_iter") == 6

    def test_step_of_skipped_micro_batches_is_held_back(self, tmp_path: Path) -> None:
        bus, weights, rates = HookBus(), [], []

        @bus.on("before_train_iter")
        def skip(run: Any) -> None:
            if run.iter in (2, 3):
                run.request_skip_iter()

        @bus.on("before_train_iter", name="record")
        def record(run: Any) -> None:
            weights.append(get_weights(trainer))
            rates.append(trainer.lr_scheduler.last_epoch)

        trainer = make_trainer(tmp_path, HostTask(epochs=1, accumulate=2), lr_scheduler_type="linear")
        bus.attach(trainer)
        trainer.train()
        changes = [not torch.equal(before[0], after[0]) for before, after in pairwise(weights)]
        assert changes == [False, True, False, False, False]
        assert rates == [0, 0, 1, 1, 1, 1]
        assert (bus.current.steps_done, trainer.state.global_step, trainer.lr_scheduler.last_epoch) == (2, 3, 2)
        assert bus.current.iters_done == 6
