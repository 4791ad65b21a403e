"""Outputs of a module outside of the loops of Lightning, which leave no trace in its metrics and lists."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

METRIC_STATE = {"_update_count", "_computed", "_forward_cache"}
"""Attributes of a metric of torchmetrics that an update changes, in addition to its states."""


def is_overridden(module: Any, name: str) -> bool:
    """Return whether a module has its own version of a method of `LightningModule`.

    Args:
        module: The module.
        name: Name of the method.
    """
    base = next(cls for cls in type(module).__mro__ if cls.__name__ == "LightningModule")
    return name in vars(module) or getattr(type(module), name) is not getattr(base, name)


def call_training_step(module: Any, batch: Any) -> Any:
    """Call `training_step` without effects on what the module logs, counts and collects.

    Args:
        module: Module with automatic optimization.
        batch: Batch on its device.

    Returns:
        Return value of the step.
    """
    step = module.training_step
    # Lightning passes the index by position, to the methods that take it.
    indices = [0] * (_count_positional(step) > 1)
    with _preserve(module):
        return step(batch, *indices)


def _count_positional(method: Callable[..., Any]) -> int:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(parameter.kind in kinds for parameter in inspect.signature(method).parameters.values())


@contextmanager
def _preserve(module: Any) -> Iterator[None]:
    """Context manager in which the module logs nothing, and changes copies of its attributes."""
    saved = [(vars(part), _find_state(part)) for part in module.modules()]
    for attributes, state in saved:
        attributes.update({name: _copy(value) for name, value in state.items()})
    own_log = vars(module).get("log")
    vars(module)["log"] = lambda *_, **__: None
    try:
        yield
    finally:
        del vars(module)["log"]
        if own_log is not None:
            vars(module)["log"] = own_log
        for attributes, state in saved:
            attributes.update(state)


def _find_state(part: Any) -> dict[str, Any]:
    """Return the attributes that a step may change: public numbers and containers, and the state of a metric."""
    metric = {*getattr(part, "_defaults", ()), *METRIC_STATE} if hasattr(part, "_update_count") else set()
    containers = (list, dict, set, int, float)
    return {
        name: value
        for name, value in vars(part).items()
        if name in metric or (isinstance(value, containers) and not name.startswith("_"))
    }


def _copy(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    return copy.copy(value) if isinstance(value, (list, dict, set)) else value
