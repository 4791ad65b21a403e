"""Warnings about steps between the iterations of a custom loop."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from hookbus import HookBus
from hookbus_checkpoint import CheckpointHook


def train(directory: Path, *, early: str = "", late: str = "", at_the_end: str = "", every: int = 1) -> None:
    """Train for two epochs of four iterations.

    Args:
        directory: Work directory.
        early, late, at_the_end: Names of what steps within an iteration, after its last event, and after an epoch.
        every: Number of iterations per step.
    """
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    parts = {"optimizer": optimizer, "scheduler": scheduler}
    bus = HookBus([CheckpointHook(save_best=False)])
    with bus.run(model=model, optimizer=optimizer, scheduler=scheduler, epochs=2, work_dir=directory) as run:
        for _ in run.epochs():
            bus.emit("before_train_epoch")
            for i, batch in run.batches([torch.ones(1, 2)] * 4):
                bus.emit("before_train_iter", batch_idx=i, batch=batch)
                model(batch).sum().backward()
                for name in early.split() if i % every == every - 1 else ():
                    parts[name].step()
                bus.emit("after_train_iter", batch_idx=i, batch=batch)
                for name in late.split() if i % every == every - 1 else ():
                    parts[name].step()
            bus.emit("after_train_epoch")
            for name in at_the_end.split():
                parts[name].step()


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize(("early", "late"), [("optimizer", "scheduler"), ("", "optimizer")])
def test_step_after_the_last_event_of_an_iteration_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, early: str, late: str, every: int
) -> None:
    train(tmp_path, early=early, late=late, every=every)
    [message] = [message for message in caplog.messages if "Call step() before" in message]
    assert message.startswith(f"{late}: stepped after after_train_iter of iteration {every}. A checkpoint")


@pytest.mark.parametrize("at_the_end", ["", "scheduler"])
def test_steps_within_iterations_and_at_the_end_of_epochs_are_not_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, at_the_end: str
) -> None:
    train(tmp_path, early="optimizer" if at_the_end else "optimizer scheduler", at_the_end=at_the_end)
    assert not any("stepped after" in message for message in caplog.messages)
