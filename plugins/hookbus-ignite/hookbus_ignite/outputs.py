"""Outputs and metrics of engines, as hooks receive them."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Number
from typing import Any

from torch import Tensor


def to_outputs(output: Any) -> dict[str, Any] | None:
    """Return the output of an update function by name: a mapping, or a single number, which is the loss.

    Args:
        output: `engine.state.output`.
    """
    if output is None:
        return None
    if isinstance(output, Mapping):
        return dict(output)
    is_loss = isinstance(output, Number) or (isinstance(output, Tensor) and output.dim() == 0)
    return {"loss" if is_loss else "output": output}


def to_evaluated_outputs(output: Any) -> dict[str, Any] | None:
    """Return the output of an evaluator by name: as `to_outputs`, or the first of a pair of prediction and target."""
    return {"output": output[0]} if isinstance(output, (tuple, list)) and output else to_outputs(output)


def select_numbers(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics of an engine that are numbers."""
    return {name: value for name, value in metrics.items() if _is_number(value)}


def _is_number(value: Any) -> bool:
    return isinstance(value, Number) or (isinstance(value, Tensor) and value.numel() == 1)
