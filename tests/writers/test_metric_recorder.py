"""Tests of the base class of hooks that log the means of training metrics every N iterations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from hookbus import Hook, Run, Trainer
from hookbus.metrics import Metrics
from hookbus.testing import fake_training
from hookbus.writers import MetricRecorder


class Recorder(MetricRecorder):
    """Store records: iteration, step and mean loss."""

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self.records: list[tuple[int, int, float]] = []

    def write_record(self, run: Run, metrics: Metrics, step: int) -> None:
        self.records.append((run.iters_done, step, metrics["train/loss"]))


def test_each_interval_and_the_end_of_training_have_a_record() -> None:
    hook = Recorder(interval=2)

    fake_training([hook], epochs=1, batches=5, losses=float)

    assert hook.records == [(2, 2, 1.5), (4, 4, 3.5), (5, 5, 5.0)]


def test_record_that_is_due_between_two_steps_is_delivered_at_the_next_step() -> None:
    hook, model = Recorder(interval=2), nn.Linear(1, 1)
    options: dict[str, Any] = {"accumulate": 3, "epochs": 1, "work_dir": None, "default_hooks": False}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    batches = [torch.zeros(1, 1)] * 3

    Trainer(
        model, optimizer, step_fn=lambda model, x: model(x).sum(), train_loader=batches, hooks=[hook], **options
    ).fit()

    assert [(iteration, step) for iteration, step, _ in hook.records] == [(3, 1)]


def test_recorder_without_write_record_raises_not_implemented_error() -> None:
    class Incomplete(MetricRecorder):
        """Recorder that does not write its records."""

        observer = False

    with pytest.raises(NotImplementedError, match="Incomplete: `write_record` is not implemented"):
        fake_training([Incomplete(interval=1)], epochs=1, batches=1)


def test_pending_record_is_requested_again_after_a_resume() -> None:
    hook = Recorder(interval=10)

    class Load(Hook):
        """Restore a state with a pending record before training."""

        def before_run(self, run: Run) -> None:
            hook.load_state_dict({"waiting": True})

    fake_training([hook, Load(priority=100)], epochs=1, batches=3, losses=float)

    assert hook.records == [(1, 1, 1.0), (3, 3, 2.5)]
    assert hook.state_dict() == {"waiting": False}
