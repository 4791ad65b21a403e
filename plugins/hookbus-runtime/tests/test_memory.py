from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from hookbus import Trainer
from hookbus.testing import check_hook
from hookbus_runtime import EmptyCacheHook


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list with an item per release of the cache of a simulated accelerator."""
    calls: list[int] = []
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator.memory, "empty_cache", lambda: calls.append(1))
    return calls


def train(hook: EmptyCacheHook) -> None:
    """Train two epochs of three batches with a validation of two batches after each, and test one batch."""
    model, data = nn.Linear(1, 1), [torch.zeros(1, 1)] * 3
    trainer = Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        step_fn=lambda model, batch: model(batch).mean(),
        train_loader=data,
        val_loader=data[:2],
        test_loader=data[:1],
        epochs=2,
        work_dir=None,
        hooks=[hook],
        default_hooks=False,
        device="cpu",
    )
    trainer.fit()
    trainer.test()


@pytest.mark.parametrize("settings", [{}, {"before_epoch": True, "after_iter": True}])
def test_hook_passes_the_conformance_checks(settings: dict[str, Any]) -> None:
    check_hook(EmptyCacheHook, **settings)


@pytest.mark.parametrize(
    ("settings", "times"),
    [
        ({}, 5),
        ({"before_epoch": True}, 10),
        ({"after_epoch": False, "before_epoch": True}, 5),
        ({"after_epoch": False, "after_iter": True}, 11),
    ],
)
def test_cache_is_released_in_each_mode_if_configured(
    released: list[int], settings: dict[str, Any], times: int
) -> None:
    train(EmptyCacheHook(settings))

    assert len(released) == times


def test_hook_is_a_no_op_without_an_accelerator(released: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    train(EmptyCacheHook())

    assert released == []
