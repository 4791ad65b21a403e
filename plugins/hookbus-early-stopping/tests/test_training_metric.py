"""Early stopping on the mean of a training metric over an epoch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hookbus import Hook, Run, Trainer
from hookbus.errors import MetricError
from hookbus.testing import fake_training
from hookbus_checkpoint import CheckpointHook
from hookbus_early_stopping import EarlyStoppingHook

BATCHES = 2
LOSSES = (4.0, 2.0, 3.0, 1.0, 2.0, 4.0, 3.0, 3.0)
"""Losses of the iterations: the means of the epochs are 3, 2, 3 and 3."""


def train(*hooks: Hook, losses: Sequence[float] = LOSSES, epochs: int | None = None, **options: Any) -> Run:
    return fake_training(
        hooks, epochs=epochs or len(losses) // BATCHES, batches=BATCHES, losses=lambda i: losses[i - 1], **options
    ).run


class StopOnce(Hook):
    """Hook that ends the run, or the epoch, after an iteration."""

    def __init__(self, iteration: int, *, epoch_only: bool = False) -> None:
        super().__init__()
        self.iteration, self.epoch_only = iteration, epoch_only

    def after_train_iter(self, run: Run) -> None:
        if run.iters_done == self.iteration:
            (run.request_stop_epoch if self.epoch_only else run.request_stop)("enough")


@pytest.mark.parametrize("monitor", ["train/loss", "train_loss"])
def test_patience_counts_epochs_by_the_mean_of_the_epoch(monitor: str) -> None:
    hook = EarlyStoppingHook(monitor=monitor, patience=2)
    run = train(hook, losses=(*LOSSES, 0.0, 0.0))

    assert run.stop_reasons == [f"early_stopping: {monitor} has not improved on 2 (epoch 2) in 2 epochs"]
    assert (hook.best_score, hook.best_epoch, hook.stopped_epoch, run.epochs_done) == (2.0, 2, 4, 4)


def test_validations_are_not_counted() -> None:
    hook = EarlyStoppingHook(monitor="train/loss", patience=2)
    run = train(hook, scores=lambda epoch: {"loss": 10.0 - epoch})

    assert (hook.wait_count, hook.stopped_epoch, run.outcome) == (2, 4, "stopped")


def test_best_weights_are_those_at_the_end_of_the_best_epoch() -> None:
    stopped = train(EarlyStoppingHook(monitor="train/loss", patience=2)).model
    two_epochs = train(epochs=2).model
    assert stopped is not None
    assert two_epochs is not None

    expected = two_epochs.state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in stopped.state_dict().items())


@pytest.mark.parametrize(("epoch_only", "scores"), [(False, [3.0]), (True, [3.0, 2.5])])
def test_epoch_that_is_left_early_is_not_evaluated(epoch_only: bool, scores: list[float]) -> None:
    """Iteration 3, the first of the second epoch, has the best loss."""
    hook, seen = EarlyStoppingHook(monitor="train/loss", patience=5), []

    class Recorder(Hook):
        def after_epoch(self) -> None:
            seen.append(hook.stopping_rule.last)

    losses = (4.0, 2.0, 0.5, 2.0, 3.0) if epoch_only else (4.0, 2.0, 0.5, 0.5, 0.5)
    run = train(hook, StopOnce(3, epoch_only=epoch_only), Recorder(), losses=losses, epochs=3 if epoch_only else 2)

    assert hook.best_score == min(scores)
    assert list(dict.fromkeys(seen)) == scores
    assert run.outcome == ("finished" if epoch_only else "stopped")


def test_epoch_at_the_limit_of_iterations_is_evaluated_if_it_is_complete() -> None:
    hooks = [EarlyStoppingHook(monitor="train/loss") for _ in range(2)]
    for hook, iterations in zip(hooks, (3, 4), strict=True):
        fake_training([hook], epochs=2, iterations=iterations, batches=2, losses=lambda i: LOSSES[i - 1])

    assert [hook.best_score for hook in hooks] == [3.0, 2.0]


@pytest.mark.parametrize("stopped_at", range(1, 8))
def test_resumed_run_makes_the_same_decisions(tmp_path: Path, stopped_at: int) -> None:
    """An epoch that the resumed run completes is evaluated once, on all of its iterations."""

    def run_once(name: str, *hooks: Hook, **options: Any) -> tuple[Any, ...]:
        hook = EarlyStoppingHook(monitor="train/loss", patience=3)
        saver = CheckpointHook(save_best=False)
        train(hook, saver, *hooks, work_dir=tmp_path / name, **options)
        return hook.best_score, hook.best_epoch, hook.wait_count, hook.stopping_rule.last

    expected = run_once("whole")
    run_once("parts", StopOnce(stopped_at))
    assert run_once("parts", resume="auto") == expected == (2.0, 2, 2, 3.0)


def test_trainer_without_validations_stops_on_the_training_loss() -> None:
    model = nn.Linear(1, 1)
    trainer = Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=0.0),  # the loss does not change
        nn.functional.mse_loss,
        train_loader=[(torch.ones(2, 1), torch.ones(2, 1))] * 3,
        epochs=9,
        default_hooks=False,
        device="cpu",
        hooks=[EarlyStoppingHook(monitor="train_loss", patience=2)],
    )
    trainer.check()
    assert (trainer.fit().outcome, trainer.bus.current.epochs_done) == ("stopped", 3)


def test_unknown_training_metric_is_an_error_that_lists_the_metrics() -> None:
    with pytest.raises(MetricError, match=r"Unknown metric 'train/accuracy'.* Available: train/loss\."):
        train(EarlyStoppingHook(monitor="train/accuracy"))


def test_patience_that_epochs_could_not_reach_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    train(EarlyStoppingHook(monitor="train/loss", patience=4))
    assert "early_stopping: `patience=4` could not stop the run, which had 4 epochs. Set a smaller number." in (
        caplog.messages
    )
