"""Splitting of a batch into micro-batches and merging of their outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def get_batch_size(batch: Any) -> int:
    """Return the number of samples: the length of the first tensor that is not a scalar, 0 if there is none."""
    return next((len(tensor) for tensor in _find_tensors(batch) if tensor.dim()), 0)


def split_batch(batch: Any, sizes: Sequence[int]) -> list[Any]:
    """Split a batch into parts.

    Tensors and lists with one element per sample are split; all other values are repeated in each part.

    Args:
        batch: A tensor of shape (N, ...), or nested tuples, lists and mappings of such tensors.
        sizes: Number of samples of each part, with the sum N.
    """
    count = sum(sizes)
    if isinstance(batch, Tensor):
        return list(batch.split(list(sizes))) if batch.dim() and len(batch) == count else [batch] * len(sizes)
    if isinstance(batch, Mapping):
        columns = {key: split_batch(value, sizes) for key, value in batch.items()}
        return [{key: values[i] for key, values in columns.items()} for i in range(len(sizes))]
    # A list of N items is per sample, unless an item is itself a batch of N: then the list is a tuple of N fields.
    if isinstance(batch, list) and len(batch) == count and not any(get_batch_size(item) == count for item in batch):
        ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
        return [batch[end - size : end] for end, size in zip(ends, sizes, strict=True)]
    if isinstance(batch, (tuple, list)):
        rows = list(zip(*(split_batch(item, sizes) for item in batch), strict=True))
        # The constructor of a named tuple has a parameter per field.
        return [type(batch)(*row) if hasattr(batch, "_fields") else type(batch)(row) for row in rows]
    return [batch] * len(sizes)


def merge_outputs(
    outputs: Sequence[Mapping[str, Any]], weights: Sequence[float], sizes: Sequence[int]
) -> dict[str, Any]:
    """Merge the outputs of the parts into the outputs of the whole batch.

    Scalars are summed by weight, tensors with one element per sample are concatenated. Of all other values, the value
    of the last part is used.

    Args:
        outputs: Outputs of each part, by name.
        weights: Weight of each part.
        sizes: Number of samples of each part.
    """
    return {name: _merge_values([output[name] for output in outputs], weights, sizes) for name in outputs[-1]}


def format_shapes(batch: Any) -> str:
    """Return the shapes and dtypes of the tensors of a batch as text."""
    return ", ".join(
        f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}" for tensor in _find_tensors(batch)
    )


def _merge_values(values: list[Any], weights: Sequence[float], sizes: Sequence[int]) -> Any:
    tensors = [value for value in values if isinstance(value, Tensor)]
    if len(tensors) < len(values):
        numeric = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)
        return sum(v * w for v, w in zip(values, weights, strict=True)) if numeric else values[-1]
    if all(tensor.dim() and len(tensor) == size for tensor, size in zip(tensors, sizes, strict=True)):
        return torch.cat(tensors)
    # Integer scalars, such as counters, have no meaningful weighted sum.
    if all(not tensor.dim() and tensor.is_floating_point() for tensor in tensors):
        return sum(tensor * weight for tensor, weight in zip(tensors, weights, strict=True))
    return tensors[-1]


def _find_tensors(batch: Any) -> list[Tensor]:
    if isinstance(batch, Tensor):
        return [batch]
    items = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, (tuple, list)) else ()
    return [tensor for item in items for tensor in _find_tensors(item)]
