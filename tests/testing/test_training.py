"""Tests of the small training."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hookbus import Hook, HookBus, every, hookimpl
from hookbus.testing import RecordingBus, fake_training, fingerprint


class Counting(Hook):
    """Count every second iteration."""

    count = 0

    @hookimpl(when=every(2))
    def after_train_iter(self) -> None:
        self.count += 1


def test_training_runs_the_configured_iterations() -> None:
    training = fake_training([good := Counting()], epochs=3, batches=5, batch_size=2)
    run = training.run
    assert (run.outcome, run.epochs_done, run.iters_done, run.steps_done) == ("finished", 3, 15, 15)
    assert run.samples_done == 30
    assert good.count == 7
    assert isinstance(training.model, nn.Module)


def test_training_is_bit_exact() -> None:
    first, second = fake_training(), fake_training()
    assert fingerprint(first.model.state_dict()) == fingerprint(second.model.state_dict())
    assert fingerprint(first.rng) == fingerprint(second.rng)
    longer = fake_training(epochs=3)
    assert fingerprint(longer.model.state_dict()) != fingerprint(first.model.state_dict())


def test_training_reports_the_given_losses_and_scores(tmp_path: Path) -> None:
    bus: Any = RecordingBus()
    training = fake_training(
        bus=bus, losses=lambda i: i / 2, scores=lambda epoch: {"accuracy": epoch / 10}, work_dir=tmp_path / "run"
    )
    assert [event["loss"] for event in bus.get_arguments("after_train_iter")] == [0.5, 1.0, 1.5, 2.0, 2.5, 3.0]
    assert [dict(event["metrics"]) for event in bus.get_arguments("after_val")] == [
        {"val/accuracy": 0.1},
        {"val/accuracy": 0.2},
    ]
    assert (tmp_path / "run").is_dir()
    assert training.run.work_dir is not None


def test_iteration_events_surround_the_backward_pass() -> None:
    seen = []

    class GradientRecorder(Hook):
        def after_forward(self, run: Any, loss: torch.Tensor) -> None:
            seen.append(("forward", run.model[0].weight.grad, loss.requires_grad))

        def after_backward(self, run: Any, outputs: dict[str, Any]) -> None:
            seen.append(("backward", run.model[0].weight.grad is not None, outputs["loss"]))

    fake_training([GradientRecorder()], epochs=1, batches=1, losses=lambda i: 0.5 * i)
    assert seen == [("forward", None, True), ("backward", True, 0.5)]


def test_hooks_may_wrap_the_step_and_skip_iterations() -> None:
    class Doubling(Hook):
        @hookimpl(wrapper=True)
        def train_step(self) -> Iterator[None]:
            outputs = yield
            return {"loss": 2 * outputs["loss"]}

    class Skipping(Hook):
        def before_train_iter(self, run: Any, batch_idx: int) -> None:
            if batch_idx == 0:
                run.request_skip_iter()

        def after_forward(self, run: Any, batch_idx: int) -> None:
            if batch_idx == 1:
                run.request_skip_iter()

    bus: Any = RecordingBus([Doubling(), Skipping()])
    training = fake_training(bus=bus, epochs=1, losses=float)
    assert [event["loss"] for event in bus.get_arguments("after_train_iter")] == [None, 4.0, 6.0]
    assert (training.run.iters_done, training.run.steps_done) == (3, 1)


def test_options_are_passed_to_the_run() -> None:
    assert fake_training(seed=7).run.seed == 7
    assert isinstance(fake_training().run.bus, HookBus)
