"""Tensors of a model that change during training, or cannot be averaged."""

from __future__ import annotations

import logging

from torch import nn
from torch.nn.parameter import is_lazy

from hookbus import Run
from hookbus.distributed import strip_wrappers
from hookbus_ema.average import ExponentialMovingAverage
from hookbus_ema.config import EMAConfig
from hookbus_ema.overlap import build_average


def sync_with_model(
    average: ExponentialMovingAverage, model: nn.Module, config: EMAConfig, logger: logging.Logger
) -> ExponentialMovingAverage:
    """Return an average of the current tensors of a model.

    Tensors that the model still contains keep their averages. New tensors, also under an existing name, start at their
    current values. A warning lists them, except for tensors that are copied and not averaged, such as a buffer that
    each forward creates.

    Args:
        average: Average so far.
        model: The model.
        config: Configuration of a new average.
        logger: Logger of the warning.

    Returns:
        The same average if the tensors are the same, else a new one. The old one is closed.
    """
    # While the averages are in the model, the raw weights are stored in `average` and would be lost with it.
    if average.raw() is not None or average.averages_model(model):
        return average
    old_names, current = average.averaged().keys(), build_average(model, config)
    average.close()
    added = current.transfer_from(average)
    removed = sorted(old_names - current.averaged().keys())
    if added or removed:
        logger.warning("The parameters of the model changed. Now averaged: %s; no longer averaged: %s.", added, removed)
    return current


def report_unaveraged(average: ExponentialMovingAverage, reported: set[str], logger: logging.Logger, hook: str) -> None:
    """Log which tensors cannot be averaged, once each.

    Args:
        average: The average.
        reported: Names of the tensors that were logged; updated.
        logger: Logger of the warning.
        hook: Name of the hook.
    """
    new = [f"{name} ({reason})" for name, reason in average.unaveraged.items() if name not in reported]
    reported.update(average.unaveraged)
    if new:
        shown = f"{', '.join(new[:10])}{f' and {len(new) - 10} more' if len(new) > 10 else ''}"
        total = len(average.averaged())
        logger.warning("%s: %s of %s tensors cannot be averaged and are copied: %s.", hook, len(new), total, shown)


def get_unwrapped_model(run: Run) -> nn.Module:
    """Return the model of a run without its wrappers. The run must have a model."""
    assert run.model is not None
    return strip_wrappers(run.model)


def is_initialized(model: nn.Module) -> bool:
    """Whether all tensors of a model are initialized; lazy modules initialize theirs in the first forward."""
    return not any(is_lazy(tensor) for tensor in (*model.parameters(), *model.buffers()))
