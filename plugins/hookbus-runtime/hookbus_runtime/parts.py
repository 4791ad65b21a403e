"""A batch in parts, and what is made of them put together again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["joined", "shapes_of", "size_of", "split"]


def size_of(batch: Any) -> int:
    """The number of samples: the length of the first tensor with a dimension, 0 where there is none."""
    return next((len(tensor) for tensor in _tensors(batch) if tensor.dim()), 0)


def split(batch: Any, sizes: Sequence[int]) -> list[Any]:
    """A batch in parts of these sizes: tensors and lists that have one entry per sample are cut, all else is repeated.

    Args:
        batch: a tensor of shape (N, ...), or a nest of tuples, lists and mappings with such tensors in it.
        sizes: how many samples each part has; together all of them.
    """
    count = sum(sizes)
    if isinstance(batch, Tensor):
        return list(batch.split(list(sizes))) if batch.dim() and len(batch) == count else [batch] * len(sizes)
    if isinstance(batch, Mapping):
        columns = {key: split(value, sizes) for key, value in batch.items()}
        return [{key: values[i] for key, values in columns.items()} for i in range(len(sizes))]
    if isinstance(batch, list) and len(batch) == count and not any(size_of(each) == count for each in batch):
        ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
        return [batch[end - size : end] for end, size in zip(ends, sizes, strict=True)]
    if isinstance(batch, (tuple, list)):
        rows = list(zip(*(split(each, sizes) for each in batch), strict=True))
        return [type(batch)(*row) if hasattr(batch, "_fields") else type(batch)(row) for row in rows]
    return [batch] * len(sizes)


def joined(outputs: Sequence[Mapping[str, Any]], weights: Sequence[float], sizes: Sequence[int]) -> dict[str, Any]:
    """What the parts returned, as the whole would have returned it.

    Single numbers are added up by weight, tensors with one entry per sample put end to end; of anything else the last
    one is taken.

    Args:
        outputs: of each part, by name.
        weights: what each part counts for.
        sizes: samples of each part.
    """
    return {name: _joined([each[name] for each in outputs], weights, sizes) for name in outputs[-1]}


def shapes_of(batch: Any) -> str:
    """The shapes of the tensors of a batch, for people."""
    return ", ".join(f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}" for tensor in _tensors(batch))


def _joined(values: list[Any], weights: Sequence[float], sizes: Sequence[int]) -> Any:
    tensors = [value for value in values if isinstance(value, Tensor)]
    if len(tensors) < len(values):
        numeric = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)
        return sum(v * w for v, w in zip(values, weights, strict=True)) if numeric else values[-1]
    if all(tensor.dim() and len(tensor) == size for tensor, size in zip(tensors, sizes, strict=True)):
        return torch.cat(tensors)
    if all(not tensor.dim() and tensor.is_floating_point() for tensor in tensors):
        return sum(tensor * weight for tensor, weight in zip(tensors, weights, strict=True))
    return tensors[-1]


def _tensors(batch: Any) -> list[Tensor]:
    if isinstance(batch, Tensor):
        return [batch]
    items = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, (tuple, list)) else ()
    return [tensor for each in items for tensor in _tensors(each)]
