"""The graph of a model, as TensorBoard shows it."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn

__all__ = ["graph_of"]


def graph_of(model: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Trace a model.

    Args:
        model: the model, in evaluation mode and without gradients.
        arguments: what it is called with.
        named: the same by name.

    Returns:
        What `FileWriter.add_graph` of torch takes.

    Raises:
        Exception: the model cannot be traced with these arguments.
    """
    from torch.utils.tensorboard import _pytorch_graph  # SummaryWriter.add_graph would trace on the writer's thread

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that tracing is deprecated, and each value that the trace takes as a constant
        traced = torch.jit.trace(
            model, arguments or None, example_kwarg_inputs=named or None, strict=False, check_trace=False
        )
        return _pytorch_graph.graph(traced, arguments)
