"""Tracing of a model into a TensorBoard graph."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn

__all__ = ["trace_graph"]


def trace_graph(model: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Trace a model.

    Args:
        model: Model in evaluation mode, with gradients disabled.
        arguments: Positional arguments of the model.
        keywords: Keyword arguments of the model.

    Returns:
        The graph in the form that `torch.utils.tensorboard.FileWriter.add_graph` accepts.

    Raises:
        Exception: If the model cannot be traced with these arguments.
    """
    # The private module, because the public `SummaryWriter.add_graph` traces and writes in one call, and the writer's
    # thread must not run the model while training does.
    from torch.utils.tensorboard import _pytorch_graph

    with warnings.catch_warnings():
        # Tracing warns of its deprecation (torch 2.13) and of each Python value that becomes a constant.
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(
            model, arguments or None, example_kwarg_inputs=keywords or None, strict=False, check_trace=False
        )
        return _pytorch_graph.graph(traced, arguments)
