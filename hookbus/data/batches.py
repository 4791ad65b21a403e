"""Nested batches and outputs that contain tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

__all__ = ["detach_tree", "get_targets", "move_to_device"]

TARGET_KEYS = ("targets", "target", "labels", "label", "y")


def move_to_device(batch: Any, device: torch.device) -> Any:
    """Return a batch with all tensors, and all other objects that have a method `to`, on a device.

    Tensors are copied with `non_blocking=True`.
    """
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    # Other objects, such as BatchEncoding of transformers, do not all accept `non_blocking`.
    if hasattr(batch, "to"):
        return batch.to(device)
    return _map_items(batch, lambda item: move_to_device(item, device))


def detach_tree(value: Any) -> Any:
    """Return a nested value with all tensors detached from the autograd graph."""
    if isinstance(value, Tensor):
        return value.detach() if value.requires_grad else value
    return _map_items(value, detach_tree)


def _map_items(value: Any, function: Callable[[Any], Any]) -> Any:
    """Apply a function to the items of a mapping, tuple or list; return any other value unchanged."""
    if isinstance(value, Mapping):
        return {key: function(item) for key, item in value.items()}
    # The constructor of a named tuple takes its fields as separate arguments.
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(function, value))
    if isinstance(value, (tuple, list)):
        return type(value)([function(item) for item in value])
    return value


def get_targets(batch: Any) -> Any:
    """Return the targets of a batch, or None if there are none.

    Args:
        batch: A tuple or list with the targets as its last element, or a mapping with the targets under "targets",
            "target", "labels", "label" or "y".
    """
    if isinstance(batch, (tuple, list)) and len(batch) > 1:
        return batch[-1]
    if isinstance(batch, Mapping):
        return next((batch[key] for key in TARGET_KEYS if key in batch), None)
    return None
