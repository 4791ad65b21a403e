"""Nested batches and outputs that contain tensors."""

from __future__ import annotations

import copy
from collections import UserDict
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from hookbus.data.batch_sizes import field_names
from hookbus.errors import LoopError

TARGET_KEYS = ("targets", "target", "labels", "label", "y")


def move_to_device(batch: Any, device: torch.device) -> Any:
    """Return a batch with all tensors, and all other objects that have a method `to`, on a device.

    Tensors are found in mappings, lists, tuples, named tuples, dataclasses and attrs instances of any nesting, whose
    type is kept. They are copied with `non_blocking=True`.

    Args:
        batch: A batch, which is not modified.
        device: The device.

    Raises:
        LoopError: If a mapping or a tuple cannot be rebuilt with the tensors on the device.
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
    """Apply a function to the items of a container or the fields of a dataclass; return any other value unchanged.

    Raises:
        LoopError: If an item changes and the container cannot be rebuilt.
    """
    items: dict[Any, Any]
    rebuild: Callable[[Any, dict[Any, Any]], Any]
    if isinstance(value, (list, tuple)):
        items, rebuild = dict(enumerate(value)), _rebuild_sequence
    elif isinstance(value, Mapping):  # also the output of a model of transformers, a mapping and a dataclass
        items, rebuild = dict(value.items()), _rebuild_mapping
    elif (names := _attribute_names(value)) is not None:
        items, rebuild = {name: getattr(value, name) for name in names if hasattr(value, name)}, _replace_attributes
    else:
        return value
    mapped = {key: function(item) for key, item in items.items()}
    return value if all(mapped[key] is item for key, item in items.items()) else rebuild(value, mapped)


def _attribute_names(value: Any) -> list[str] | None:
    """Return the names of all attributes of a dataclass or an attrs instance, None for any other value."""
    names = field_names(value)
    # Attributes that are no fields, too: `__post_init__` may have set them.
    return None if names is None else list(dict.fromkeys([*names, *getattr(value, "__dict__", ())]))


def _replace_attributes(value: Any, attributes: dict[Any, Any]) -> Any:
    """Return a copy of an object with other attributes."""
    new = copy.copy(value)
    for name, item in attributes.items():
        # Not `setattr`, which a frozen dataclass rejects, nor `dataclasses.replace`, which requires all fields to be
        # arguments of `__init__`.
        object.__setattr__(new, name, item)
    return new


def _rebuild_sequence(value: Any, items: dict[Any, Any]) -> Any:
    """Return a list or tuple of the same type with other items."""
    if isinstance(value, list):
        new = copy.copy(value)  # keeps the attributes of a subclass
        new[:] = items.values()
        return new
    make = getattr(value, "_make", type(value))  # the constructor of a named tuple takes its fields separately
    return _try_rebuild(value, lambda: make(list(items.values())))


def _rebuild_mapping(value: Any, items: dict[Any, Any]) -> Any:
    """Return a mapping of the same type with other items."""
    if type(value) is dict:
        return items
    if isinstance(value, (dict, UserDict)):
        new = copy.copy(value)  # keeps the attributes of a subclass, such as `default_factory`
        for key, item in items.items():
            new[key] = item
        return new
    return _try_rebuild(value, lambda: type(value)(items))


def _try_rebuild(value: Any, make: Callable[[], Any]) -> Any:
    try:
        new = make()
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
    else:
        if len(new) == len(value):
            return new
        problem = f"{len(new)} instead of {len(value)} items"
    kind = type(value).__name__
    raise LoopError(
        f"batch: a {kind} cannot be rebuilt with other tensors, got {problem}. Define a method `to(device)` in {kind}, "
        "or use a dict or a dataclass."
    )


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
