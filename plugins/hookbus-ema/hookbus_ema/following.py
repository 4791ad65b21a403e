"""The model that is averaged, which may change during a training."""

from __future__ import annotations

import logging

from torch import nn
from torch.nn.parameter import is_lazy

from hookbus import Run
from hookbus.model.wrappers import unwrapped
from hookbus_ema.average import ExponentialMovingAverage
from hookbus_ema.config import EMAConfig
from hookbus_ema.overlap import average_of

__all__ = ["followed", "has_shape", "model_of"]


def followed(
    average: ExponentialMovingAverage, model: nn.Module, config: EMAConfig, logger: logging.Logger
) -> ExponentialMovingAverage:
    """The average of the tensors that a model has now.

    Tensors that are still there keep their averages. New ones, under an old name as well, start at their weights as
    they are now, and that is said, unless they are only copied, such as a buffer that each forward makes anew.

    Args:
        average: the average so far.
        model: the model.
        config: what an average is made with.
        logger: where to report.

    Returns:
        The same average, or another one where the model has other tensors.
    """
    if average.raw() is not None or average.is_of(model):
        return average
    before, now = average.averaged(), average_of(model, config)
    average.close()
    fresh = now.go_on_from(average)
    gone = sorted(before.keys() - now.averaged().keys())
    if fresh or gone:
        logger.warning("The model has got other tensors. Averaged from now on: %s; no more: %s.", fresh, gone)
    return now


def model_of(run: Run) -> nn.Module:
    """The model of a run that has one, without what is wrapped around it."""
    assert run.model is not None
    return unwrapped(run.model)


def has_shape(model: nn.Module) -> bool:
    """Whether every tensor of a model has its shape; those of lazy modules get it in the first forward."""
    return not any(is_lazy(tensor) for tensor in (*model.parameters(), *model.buffers()))
