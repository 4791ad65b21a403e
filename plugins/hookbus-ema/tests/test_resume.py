"""Averages from a checkpoint, for a run that starts from them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hookbus.checkpoint.state import write_checkpoint
from hookbus.errors import CheckpointError
from hookbus_ema import ExponentialMovingAverage
from hookbus_ema.resume import load_average

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
    common = {"version": 1, "package": "hookbus-ema 0.1.0"}
    return {
        "ema": {**common, "type": "EMAHook", "state": {"steps": steps}},
        "timer": {**common, "type": "IterTimerHook", "state": {}},
    }


def test_averages_and_warm_up_continue(write: Callable[..., Path]) -> None:
    average = ExponentialMovingAverage(nn.Linear(2, 5))
    load_average(
        average, nn.Linear(2, 5), write(ema_state_dict=averages(), hooks=record(123), meta={"step": 200}), LOGGER
    )

    assert average.averaged()["weight"].unique().tolist() == [7.0]
    assert average.averaged()["bias"].unique().tolist() == [8.0]
    assert average.steps == 123


@pytest.mark.parametrize(("content", "steps"), [({"meta": {"step": 200}}, 200), ({}, 0)])
def test_steps_are_those_of_the_run_without_a_state_of_the_hook(
    write: Callable[..., Path], content: dict[str, Any], steps: int
) -> None:
    average = ExponentialMovingAverage(nn.Linear(2, 5))
    load_average(average, nn.Linear(2, 5), write(ema_state_dict=averages(), **content), LOGGER)

    assert average.steps == steps


def test_matching_averages_are_loaded_and_the_rest_is_logged(
    write: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    model = nn.Linear(2, 5)
    saved = {"weight": torch.full((5, 2), 7.0), "bias": torch.zeros(3), "scale": torch.zeros(1)}
    average = ExponentialMovingAverage(model)
    load_average(average, nn.Linear(2, 5), write(ema_state_dict=saved), LOGGER)

    assert average.averaged()["weight"].unique().tolist() == [7.0]
    assert torch.equal(average.averaged()["bias"], model.bias)
    assert caplog.messages == [
        "resume_from: skipped: ['bias', 'scale']; initialized from the weights of the model: ['bias'].",
    ]


def test_complete_match_logs_nothing(write: Callable[..., Path], caplog: pytest.LogCaptureFixture) -> None:
    load_average(ExponentialMovingAverage(nn.Linear(2, 5)), nn.Linear(2, 5), write(ema_state_dict=averages()), LOGGER)

    assert caplog.messages == []


def test_checkpoint_without_averages_is_rejected(write: Callable[..., Path]) -> None:
    path = write(meta={}, state_dict={})
    with pytest.raises(
        CheckpointError, match=r"contains no averaged weights \(ema_state_dict\), only meta, state_dict\."
    ):
        load_average(ExponentialMovingAverage(nn.Linear(2, 5)), nn.Linear(2, 5), path, LOGGER)


def test_checkpoint_of_another_model_is_rejected(write: Callable[..., Path]) -> None:
    with pytest.raises(CheckpointError, match=r"no average in .* matches the model\."):
        load_average(
            ExponentialMovingAverage(nn.Linear(2, 5)), nn.Linear(2, 5), write(ema_state_dict=averages(3)), LOGGER
        )


def test_missing_checkpoint_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="file does not exist"):
        load_average(ExponentialMovingAverage(nn.Linear(2, 5)), nn.Linear(2, 5), tmp_path / "none.pth", LOGGER)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"ema_state_dict": None}, "ema_state_dict: expected a mapping, got None"),
        ({"hooks": {"ema": None}}, "hooks.ema: expected a mapping, got None"),
        ({"hooks": record(-1)}, "hooks.ema.state.steps: expected an integer from 0"),
        ({"meta": None}, "meta: expected a mapping, got None"),
        ({"meta": {"step": 10**30}}, "meta.step: expected an integer from 0"),
    ],
)
def test_invalid_value_is_reported_with_its_key(
    write: Callable[..., Path], content: dict[str, Any], message: str
) -> None:
    average = ExponentialMovingAverage(nn.Linear(2, 5))
    with pytest.raises(CheckpointError, match=rf"epoch_1\.pth: The checkpoint is invalid: {message}"):
        load_average(average, nn.Linear(2, 5), write(**{"ema_state_dict": averages(), **content}), LOGGER)
