"""Outputs of a model in the form in which hooks receive them, and arguments of wrapped methods."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def name_outputs(loss: Any, outputs: Any) -> dict[str, Any]:
    """Return the outputs of a model by name, with the loss under "loss".

    Args:
        loss: Loss of the batch.
        outputs: Outputs by name, or in any other form, which is returned as "output"; None if they are unknown.
    """
    if isinstance(outputs, Mapping):
        return {**outputs, "loss": loss}
    return {"loss": loss} if outputs is None else {"output": outputs, "loss": loss}


def accepts_argument(function: Callable[..., Any], name: str) -> bool:
    """Return whether a function can be called with an argument of a name."""
    parameters = inspect.signature(function).parameters
    return name in parameters or any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())


def get_argument(
    function: Callable[..., Any], name: str, args: Sequence[Any], kwargs: Mapping[str, Any], default: Any = None
) -> Any:
    """Return the argument that a call passes to a function under a name, whether by position or by name."""
    arguments = inspect.signature(function).bind(*args, **kwargs).arguments
    return arguments.get(name, arguments.get("kwargs", {}).get(name, default))
