"""Class attributes and properties of hooks."""

from __future__ import annotations

import inspect
from enum import Enum

from docs.generating.tables import capitalize, parse_section, table
from hookbus.hook import Hook

__all__ = ["hook_facts", "hook_questions"]


def hook_facts() -> str:
    """Return the table of the class attributes of `Hook`, from its docstring."""
    documented = parse_section(Hook, "Attributes")
    attributes = [name for name in documented if name in vars(Hook) and not isinstance(vars(Hook)[name], property)]
    rows = (
        (f"`{name}`", f"{capitalize(documented[name])}<br><small>{_format_default(name)}</small>")
        for name in attributes
    )
    return table(("attribute", "meaning"), rows)


def _format_default(name: str) -> str:
    value = vars(Hook)[name]
    if isinstance(value, Enum):
        return f"default `{type(value).__name__}.{value.name}`"
    return f"default `{value.__name__ if inspect.isclass(value) else repr(value)}`"


def hook_questions() -> str:
    """Return the table of the properties that the bus reads, from their docstrings."""
    names = ("best_metrics", "validation_fn")
    return table(("property", "meaning"), ((f"`{name}`", inspect.getdoc(vars(Hook)[name]) or "") for name in names))
