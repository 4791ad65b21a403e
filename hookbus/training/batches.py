"""Batches and outputs: nested values with tensors somewhere in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

__all__ = ["detached", "move"]


def move(batch: Any, device: torch.device) -> Any:
    """A batch on a device: every tensor in it, without waiting for the copies, and everything else that has `to`."""
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if hasattr(batch, "to"):
        return batch.to(device)
    return _with_items(batch, lambda each: move(each, device))


def detached(value: Any) -> Any:
    """A value whose tensors hold no graph."""
    if isinstance(value, Tensor):
        return value.detach() if value.requires_grad else value
    return _with_items(value, detached)


def _with_items(value: Any, change: Callable[[Any], Any]) -> Any:
    """A mapping, list or tuple of what `change` makes of its items; anything else as it is."""
    if isinstance(value, Mapping):
        return {key: change(each) for key, each in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(change, value))
    if isinstance(value, (tuple, list)):
        return type(value)([change(each) for each in value])
    return value
