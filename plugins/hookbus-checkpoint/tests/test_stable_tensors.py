"""Tensors that do not change before the next optimizer step: selection, and detection of changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hookbus import HookBus
from hookbus._run.run import Run
from hookbus.checkpoint.state import build_checkpoint
from hookbus_checkpoint.stable_tensors import StableTensors


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """Start a run after one optimizer step, whose model has parameters and buffers."""
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(4, 2)).sum().backward()
    optimizer.step()
    with HookBus().run(model=model, optimizer=optimizer, iterations=1) as run:
        yield run


def get_names(values: list[Any], checkpoint: dict[str, Any]) -> list[str]:
    names = {id(value): name for name, value in checkpoint["state_dict"].items()}
    return [names[id(value)] for value in values if id(value) in names]


def test_find_returns_parameters_and_states_without_buffers(run: Run) -> None:
    checkpoint = build_checkpoint(run)

    values = StableTensors().find(checkpoint, run)

    assert get_names(values, checkpoint) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert [value for value in values if isinstance(value, dict)] == [
        checkpoint["optimizer"]["state"],
        checkpoint["rng"],
    ]


def test_find_returns_nothing_without_an_optimizer() -> None:
    with HookBus().run(model=nn.Linear(1, 1), iterations=1) as run:
        assert StableTensors().find(build_checkpoint(run), run) == []


def test_find_includes_parameters_added_to_the_model(run: Run) -> None:
    stable = StableTensors()
    stable.find(build_checkpoint(run), run)
    assert run.model is not None
    run.model.append(nn.PReLU())

    checkpoint = build_checkpoint(run)

    assert get_names(stable.find(checkpoint, run), checkpoint)[-1] == "2.weight"


def test_change_of_a_weight_is_detected_from_the_save_on(run: Run) -> None:
    stable = StableTensors()
    stable.find(build_checkpoint(run), run)
    stable.watch_weights()
    assert run.model is not None
    with torch.no_grad():
        run.model[0].weight.add_(1)

    stable.watch_states()

    assert not stable.is_unchanged()


def test_change_of_the_optimizer_state_is_detected_during_the_copy(run: Run) -> None:
    stable = StableTensors()
    stable.find(build_checkpoint(run), run)
    stable.watch_weights()
    stable.watch_states()
    assert run.optimizer is not None
    next(iter(run.optimizer.state.values()))["momentum_buffer"].zero_()

    assert not stable.is_unchanged()


def test_change_of_a_buffer_is_ignored(run: Run) -> None:
    stable = StableTensors()
    stable.find(build_checkpoint(run), run)
    stable.watch_weights()
    stable.watch_states()
    assert run.model is not None
    run.model(torch.ones(4, 2))

    assert stable.is_unchanged()
