"""Averages out of a checkpoint, for a run that starts from them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hookbus.errors import CheckpointError
from hookbus.state import write_checkpoint
from hookbus_ema import ExponentialMovingAverage
from hookbus_ema.resume import start_from

LOGGER = logging.getLogger("test")


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write(**content: Any) -> Path:
        path = tmp_path / "epoch_1.pth"
        write_checkpoint(path, content, generation=1)
        return path

    return write


def averages(count: int = 5) -> dict[str, torch.Tensor]:
    return {"weight": torch.full((count, 2), 7.0), "bias": torch.full((count,), 8.0)}


def record(steps: int) -> dict[str, Any]:
    return {"ema": {"type": "EMAHook", "state": {"steps": steps}}, "timer": {"type": "IterTimerHook", "state": {}}}


def test_the_averages_and_the_warm_up_go_on(write: Callable[..., Path]) -> None:
    average = ExponentialMovingAverage(nn.Linear(2, 5))
    start_from(average, write(ema_state_dict=averages(), hooks=record(123), meta={"step": 200}), LOGGER)

    assert average.averaged()["weight"].unique().tolist() == [7.0]
    assert average.averaged()["bias"].unique().tolist() == [8.0]
    assert average.steps == 123


@pytest.mark.parametrize(("content", "steps"), [({"meta": {"step": 200}}, 200), ({}, 0)])
def test_without_the_state_of_the_hook_the_steps_are_those_of_the_run(
    write: Callable[..., Path], content: dict[str, Any], steps: int
) -> None:
    average = ExponentialMovingAverage(nn.Linear(2, 5))
    start_from(average, write(ema_state_dict=averages(), **content), LOGGER)

    assert average.steps == steps


def test_what_fits_is_taken_and_the_rest_reported(write: Callable[..., Path], caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Linear(2, 5)
    given = {"weight": torch.full((5, 2), 7.0), "bias": torch.zeros(3), "scale": torch.zeros(1)}
    average = ExponentialMovingAverage(model)
    start_from(average, write(ema_state_dict=given), LOGGER)

    assert average.averaged()["weight"].unique().tolist() == [7.0]
    assert torch.equal(average.averaged()["bias"], model.bias)
    assert caplog.messages == [
        "resume_from: left out: ['bias', 'scale']; started at the model's weights: ['bias']",
    ]


def test_where_all_fits_nothing_is_reported(write: Callable[..., Path], caplog: pytest.LogCaptureFixture) -> None:
    start_from(ExponentialMovingAverage(nn.Linear(2, 5)), write(ema_state_dict=averages()), LOGGER)

    assert caplog.messages == []


def test_a_file_without_averages_is_refused(write: Callable[..., Path]) -> None:
    path = write(meta={}, state_dict={})
    with pytest.raises(CheckpointError, match=r"has no averaged weights \(ema_state_dict\), only meta, state_dict\."):
        start_from(ExponentialMovingAverage(nn.Linear(2, 5)), path, LOGGER)


def test_a_file_of_another_model_is_refused(write: Callable[..., Path]) -> None:
    with pytest.raises(CheckpointError, match=r"no average in .* fits the model\."):
        start_from(ExponentialMovingAverage(nn.Linear(2, 5)), write(ema_state_dict=averages(3)), LOGGER)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no such file"):
        start_from(ExponentialMovingAverage(nn.Linear(2, 5)), tmp_path / "none.pth", LOGGER)
