"""Single objects, and mappings of names to objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def get_by_name(value: Any) -> Mapping[str, Any]:
    """Return objects by name; a single object has the name ""."""
    if isinstance(value, Mapping):
        return value
    return {} if value is None else {"": value}


def format_label(kind: str, name: str) -> str:
    """Return the description of an object in a message, such as "optimizer 'G'"."""
    return f"{kind} {name!r}" if name else kind


def schedules(scheduler: Any, optimizer: Any) -> bool:
    """Return whether a learning-rate scheduler changes a parameter group of an optimizer, or it is unknown."""
    own = getattr(scheduler, "optimizer", None)
    groups = {id(group) for group in getattr(own, "param_groups", ())}
    return own is None or any(id(group) in groups for group in optimizer.param_groups)
