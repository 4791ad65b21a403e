"""Data that is derived from a batch, a model or a configuration: arguments, images, values, graph and summaries."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

MAX_VALUES = 1 << 16
"""Maximum number of values in a histogram."""

CHANNELS = (1, 3, 4)
"""Numbers of channels of an image: grayscale, RGB, RGBA."""


def get_model_arguments(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Derive the arguments of the model from a batch.

    Args:
        batch: A tensor; a sequence (inputs, ..., targets), whose last element is omitted; or a mapping of keyword
            arguments.

    Returns:
        Positional and keyword arguments.
    """
    if isinstance(batch, Mapping):
        return (), dict(batch)
    if isinstance(batch, (tuple, list)):
        return tuple(batch[:-1] if len(batch) > 1 else batch), {}
    return (batch,), {}


def find_images(batch: Any, count: int) -> list[Tensor]:
    """Return the first images of a batch, rescaled to [0, 1] if their values lie outside.

    Does not synchronize the device.

    Args:
        batch: A tensor, or a sequence or mapping of tensors; the first of shape (N, C, H, W) or (N, H, W, C) is used.
        count: Maximum number of images.

    Returns:
        Images of shape (C, H, W) or (H, W, C); empty if no tensor has such a shape.
    """
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, (tuple, list)) else [batch]
    images = next((part for part in parts if _is_image_batch(part)), None)
    return [] if images is None else list(_rescale(images.detach()[:count]))


def subsample(tensor: Tensor) -> Tensor:
    """Return at most 65,536 evenly spaced values of a tensor, as a flat tensor for a histogram."""
    flat = tensor.detach().reshape(-1)
    return flat[:: 1 + (flat.numel() - 1) // MAX_VALUES] if flat.numel() else flat


def _is_image_batch(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() == 4 and (value.shape[1] in CHANNELS or value.shape[3] in CHANNELS)


def _rescale(images: Tensor) -> Tensor:
    """Rescale float images to [0, 1]; values that already lie in [0, 1] are unchanged."""
    if not images.is_floating_point():
        return images
    # `clamp` instead of an `if` on the extrema: an `if` would synchronize the device.
    low, high = images.amin().clamp(max=0), images.amax().clamp(min=1)
    return (images - low) / (high - low)


def format_model(model: nn.Module) -> str:
    """Return a Markdown table of the parameter counts of a model and its child modules, followed by its structure."""
    rows = [("", type(model).__name__, *_count_parameters(model))]
    rows += [(name, type(child).__name__, *_count_parameters(child)) for name, child in model.named_children()]
    lines = ["| module | type | parameters | trainable |", "|---|---|---:|---:|"]
    lines += [f"| {name} | {kind} | {count:,} | {trainable:,} |" for name, kind, count, trainable in rows]
    return "\n".join([*lines, "", *_format_code(str(model))])


def format_config(config: Mapping[str, Any]) -> str:
    """Return a nested configuration as JSON in a Markdown code block."""
    return "\n".join(_format_code(json.dumps(config, indent=2, ensure_ascii=False, default=str)))


def _count_parameters(module: nn.Module) -> tuple[int, int]:
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in module.parameters()]
    return sum(size for size, _ in sizes), sum(size for size, trainable in sizes if trainable)


def _format_code(text: str) -> list[str]:
    # Indented, not fenced: the text itself can contain backticks.
    return [f"    {line}" for line in text.splitlines()]


def trace_graph(model: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Trace a model in evaluation mode.

    Returns:
        The graph in the form that `torch.utils.tensorboard.FileWriter.add_graph` accepts.
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
