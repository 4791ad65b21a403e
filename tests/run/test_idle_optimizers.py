"""Optimizers that make no steps, and gradients that a scaler always skips, are logged once with numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from hookbus import HookBus, Trainer
from tests import toys


def train(names: str, *, epochs: int = 2, **options: Any) -> None:
    """Train three iterations per epoch, in which the named optimizers step."""
    models = {name: nn.Linear(1, 1) for name in "GD"}
    optimizers = {name: torch.optim.SGD(model.parameters(), lr=0.1) for name, model in models.items()}
    bus = HookBus()
    with bus.run(model=models, optimizer=optimizers, epochs=epochs, **options) as run:
        for epoch in run.epochs():
            bus.emit("before_train_epoch")
            for _ in range(3):
                bus.emit("before_train_iter")
                for name in names.split(",")[epoch % len(names.split(","))]:
                    optimizers[name].step()
                bus.emit("after_train_iter")
            bus.emit("after_train_epoch")


def get_messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.getMessage().startswith("optimizer")]


def test_optimizer_that_never_steps_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    train("G")
    assert get_messages(caplog) == [
        "optimizer 'D': no step in 3 iterations, so its parameters are not trained. Call the step() of the optimizer "
        "that was passed to the run."
    ]


def test_optimizer_that_pauses_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    train("GD,G", epochs=4)
    assert get_messages(caplog) == []


def test_loop_without_epochs_is_checked_at_its_end(caplog: pytest.LogCaptureFixture) -> None:
    model, bus = nn.Linear(1, 1), HookBus()
    with bus.run(model=model, optimizer=torch.optim.SGD(model.parameters())):
        for _ in range(5):
            bus.emit("after_train_iter")
    assert get_messages(caplog)[0].startswith("optimizer: no step in 5 iterations, ")


@pytest.mark.parametrize("fused", [False, True])
def test_steps_that_a_scaler_always_skips_are_logged(fused: bool, caplog: pytest.LogCaptureFixture) -> None:
    model, bus = nn.Linear(1, 1), HookBus()
    optimizer = torch.optim.SGD(model.parameters(), fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with bus.run(model=model, optimizer=optimizer, scaler=scaler, epochs=2) as run:
        for epoch in run.epochs():
            bus.emit("before_train_epoch")
            for _ in range(3):
                bus.emit("before_train_iter")
                factor = float("inf") if epoch else 1.0
                scaler.scale(model(torch.ones(1, 1)).sum() * factor).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                bus.emit("after_train_iter")
            bus.emit("after_train_epoch")
    assert get_messages(caplog) == [
        "optimizer: the gradient scaler skipped every step in 3 iterations, because gradients contain inf or NaN, and "
        "reduced its scale from 1024 to 128. Find the first operation that overflows, or train with bf16."
    ]


def test_accumulation_longer_than_an_epoch_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    model = toys.net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options: dict[str, Any] = {"epochs": 3, "accumulate": 4, "work_dir": None, "default_hooks": False}
    Trainer(model, optimizer, nn.functional.cross_entropy, toys.pairs(2), **options).fit()
    assert get_messages(caplog) == []
