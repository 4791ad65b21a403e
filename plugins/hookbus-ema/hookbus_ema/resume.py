"""Averages out of a checkpoint, for the run that goes on and for a new one that starts from them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from hookbus.errors import CheckpointError
from hookbus.state import read_checkpoint
from hookbus_ema.average import ExponentialMovingAverage
from hookbus_ema.config import EMAConfig
from hookbus_ema.overlap import average_of

__all__ = ["begin", "put_back", "start_from"]


def begin(model: nn.Module, config: EMAConfig, logger: logging.Logger) -> ExponentialMovingAverage:
    """An average that starts at the weights as they are now, or at the averages of `resume_from`.

    Args:
        model: the model.
        config: the settings.
        logger: where to report.

    Raises:
        CheckpointError: the file of `resume_from` cannot be read, or has no averages, or none that fits.
    """
    average = average_of(model, config)
    if config.resume_from is not None:
        start_from(average, Path(config.resume_from), logger)
    return average


def put_back(model: nn.Module, config: EMAConfig, state: Mapping[str, Any], hook: str) -> ExponentialMovingAverage:
    """An average that goes on exactly where it was.

    Args:
        model: the model.
        config: the settings.
        state: what its `state_dict` gave.
        hook: the name of the hook, for the message.

    Raises:
        CheckpointError: the state is that of another model.
    """
    average = average_of(model, config)
    try:
        average.load_state_dict(state)
    except ValueError as error:
        raise CheckpointError(f"hook {hook!r}: {error}") from None
    return average


def start_from(average: ExponentialMovingAverage, path: Path, logger: logging.Logger) -> None:
    """Let an average go on from that of a checkpoint, its warm-up included.

    What is in one of them only, or has another shape there, stays as it is and is reported.

    Args:
        average: the average.
        path: the file.
        logger: where to report.

    Raises:
        CheckpointError: the file cannot be read, or has no averages, or none that fits.
    """
    checkpoint, own = read_checkpoint(path), average.averaged()
    if "ema_state_dict" not in checkpoint:
        raise CheckpointError(
            f"resume_from: {path} has no averaged weights (ema_state_dict), only {', '.join(map(str, checkpoint))}. "
            "Name a checkpoint that was written with the ema hook, or leave resume_from out to start from the weights "
            "of the model."
        )
    given = checkpoint["ema_state_dict"]
    fitting = {name: value for name, value in given.items() if name in own and own[name].shape == value.shape}
    if not fitting:
        raise CheckpointError(f"resume_from: no average in {path} fits the model. Name a file of the same model.")
    average.load_state_dict({"steps": _steps_in(checkpoint), "averaged": {**own, **fitting}})
    left_out, missing = sorted(given.keys() - fitting.keys()), sorted(own.keys() - fitting.keys())
    if left_out or missing:
        logger.warning("resume_from: left out: %s; started at the model's weights: %s", left_out, missing)


def _steps_in(checkpoint: Mapping[str, Any]) -> int:
    """The steps as the hook counted them, else those of the run; 0 where the file does not tell."""
    hooks = checkpoint.get("hooks", {}).values()
    counted = [record["state"]["steps"] for record in hooks if record["type"] == "EMAHook"]
    return int(counted[0] if counted else checkpoint.get("meta", {}).get("step", 0))
