"""Tests of the first line of a training."""

from typing import Any

import pytest
import torch
from torch import nn

from hookbus import HookBus
from hookbus_logger.run_header import format_run


def describe(model: nn.Module | None = None, width: int | None = None, **options: Any) -> str:
    with HookBus().run(model=model, **options) as run:
        return format_run(run, " · ", width)


@pytest.mark.parametrize(
    ("options", "length"),
    [
        ({"epochs": 1}, " · 1 epoch"),
        ({"epochs": 2, "train_loader": [torch.ones(1)]}, " · 2 epochs x 1 iteration"),
        ({"epochs": 1200}, " · 1,200 epochs"),
        ({"iterations": 5000}, " · 5,000 iterations"),
        ({"tokens": 10**9, "batch_tokens": len}, " · 1B tokens"),
        ({}, ""),
    ],
)
def test_line_contains_model_device_and_length(options: dict[str, Any], length: str) -> None:
    assert describe(nn.Linear(1000, 9), **options) == f"Linear, 9,009 parameters · cpu{length}"


def test_run_without_a_model_is_not_described() -> None:
    assert describe(None, epochs=1) == ""


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (nn.Linear(1, 1, bias=False), "Linear, 1 parameter · cpu"),
        (nn.Identity(), "Identity, 0 parameters · cpu"),
        (nn.LazyLinear(2), "LazyLinear, 0 parameters · cpu"),
    ],
)
def test_parameters_are_counted_if_they_are_initialized(model: nn.Module, text: str) -> None:
    assert describe(model) == text


def test_number_of_processes_precedes_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hookbus_logger.run_header.world_size", lambda: 8)

    assert describe(nn.Linear(1, 1)) == "Linear, 2 parameters · 8 x cpu"


def test_long_line_is_broken_between_its_parts() -> None:
    assert describe(nn.Linear(1, 1), width=28, epochs=10) == "Linear, 2 parameters · cpu\n  10 epochs"
