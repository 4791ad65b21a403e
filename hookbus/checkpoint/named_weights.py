"""Weights of named models: by model in a checkpoint, and under the full names of an `nn.ModuleDict` in a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def nest_weights(weights: Mapping[str, Any], models: Sequence[str]) -> dict[str, Any]:
    """Return the weights of an `nn.ModuleDict` by model.

    Args:
        weights: State dict of the `nn.ModuleDict`, or a part of it.
        models: Names of the models; empty for a single model, whose weights are returned unchanged.

    Returns:
        State dict of each model by name.
    """
    if not models:
        return dict(weights)
    nested: dict[str, Any] = {name: {} for name in models}
    for full_name, value in weights.items():
        model, _, name = full_name.partition(".")
        nested[model][name] = value
    return nested


def flatten_weights(weights: Mapping[str, Any]) -> dict[str, Any]:
    """Return weights under the names of the state dict of a run's model.

    Args:
        weights: State dict of one model, or the state dicts of named models by name.
    """
    # A single model whose only content is the extra state of modules has mappings as values as well.
    if not all(isinstance(value, Mapping) and not name.endswith("_extra_state") for name, value in weights.items()):
        return dict(weights)
    return {f"{model}.{name}": value for model, state in weights.items() for name, value in state.items()}
