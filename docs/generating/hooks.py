"""What a hook class states about itself."""

from __future__ import annotations

import inspect
from enum import Enum

from docs.generating.tables import described, sentence, table
from hookbus.hook import Hook

__all__ = ["hook_facts", "hook_questions"]


def hook_facts() -> str:
    """What a hook class states about itself, as its docstring says."""
    documented = described(Hook, "Attributes")
    stated = [name for name in documented if name in vars(Hook) and not isinstance(vars(Hook)[name], property)]
    rows = ((f"`{name}`", f"{sentence(documented[name])}<br><small>{_stated(name)}</small>") for name in stated)
    return table(("attribute", "meaning"), rows)


def _stated(name: str) -> str:
    value = vars(Hook)[name]
    if isinstance(value, Enum):
        return f"default `{type(value).__name__}.{value.name}`"
    return f"default `{value.__name__ if inspect.isclass(value) else repr(value)}`"


def hook_questions() -> str:
    """The properties of a hook that the bus asks, as their docstrings say."""
    names = ("keeps_best_of", "validates_with")
    return table(("property", "meaning"), ((f"`{name}`", inspect.getdoc(vars(Hook)[name]) or "") for name in names))
