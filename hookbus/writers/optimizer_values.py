"""Values of the parameter groups of optimizers that are logged: learning rate, momentum and weight decay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

OPTIMIZER_VALUES = ("lr", "momentum", "weight_decay")
"""Values of a parameter group by the name under which they are logged."""


def get_optimizer_values(optimizer: Any, value: str = "lr") -> list[Any]:
    """Return the current value of each parameter group: numbers, copies of tensors, or None if a group has none.

    The momentum of optimizers with `betas`, such as Adam, is the first of them.

    Args:
        optimizer: Object with `param_groups`, or None.
        value: "lr", "momentum" or "weight_decay". Default: "lr".
    """
    return [_copy(_get_value(group, value)) for group in _get_groups(optimizer)]


def name_optimizer_values(
    values: Iterable[Any], groups: Iterable[str], value: str = "lr", optimizer: str = ""
) -> dict[str, float]:
    """Return the values of parameter groups by name, without those that are None. Synchronizes with the device.

    Args:
        values: Value of each parameter group.
        groups: Name of each parameter group, see `get_group_names`.
        value: "lr", "momentum" or "weight_decay". Default: "lr".
        optimizer: Name of the optimizer. Default: "", for none.

    Returns:
        `lr` for an only group without a name, else `lr/<group>`; for a named optimizer `lr/G` or `lr/G/<group>`.
    """
    return {
        "/".join(filter(None, (value, optimizer, group))): float(number)
        for number, group in zip(values, groups, strict=True)
        if number is not None
    }


def get_group_names(optimizer: Any) -> list[str]:
    """Return the name of each parameter group: its `name`, else its index; "" for an only group without a name.

    Groups with equal names, which can be added during the training, have their indices.

    Args:
        optimizer: Object with `param_groups`, or None.
    """
    names = _read_names(optimizer)
    if names == [None]:
        return [""]
    labels = [str(index) if name is None else name for index, name in enumerate(names)]
    counts = Counter(labels)
    return [label if counts[label] == 1 else str(index) for index, label in enumerate(labels)]


def find_equal_names(optimizer: Any) -> list[str]:
    """Return the names that several parameter groups of an optimizer have."""
    counts = Counter(name for name in _read_names(optimizer) if name is not None)
    return [name for name, count in counts.items() if count > 1]


def _read_names(optimizer: Any) -> list[str | None]:
    names = [group.get("name") for group in _get_groups(optimizer)]
    return [None if name is None else str(name) for name in names]


def _get_groups(optimizer: Any) -> list[Mapping[str, Any]]:
    return getattr(optimizer, "param_groups", [])  # a wrapper of an optimizer need not have them


def _get_value(group: Mapping[str, Any], value: str) -> Any:
    if value == "momentum" and "betas" in group:
        return group["betas"][0]
    return group.get(value)


def _copy(value: Any) -> Any:
    # Schedulers change tensors, as used by capturable optimizers, in place.
    return value.clone() if type(value) is not float and hasattr(value, "clone") else value
