"""Synchronization of buffers and normalization statistics across ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hookbus.windows import wide

if TYPE_CHECKING:
    from hookbus.ranks import Ranks

__all__ = ["agree", "spread"]

MEAN, VARIANCE, COUNTER = "running_mean", "running_var", "num_batches_tracked"


def agree(tensors: Mapping[str, Tensor], ranks: Ranks) -> None:
    """Synchronize tensors across ranks, in place.

    A `running_var` with a `running_mean` of the same layer becomes the variance over the samples of all ranks, see
    `spread`. `num_batches_tracked` becomes the maximum, any other floating-point tensor the unweighted mean over the
    ranks. Other integer tensors and sharded tensors are not modified.

    Args:
        tensors: Tensors by name; names and shapes must be the same on all ranks.
        ranks: Collectives of the run.
    """
    # Ranks store different shards of a DTensor, so there is nothing to average.
    replicated = {name: tensor.detach() for name, tensor in tensors.items() if not hasattr(tensor, "device_mesh")}
    _average({name: tensor for name, tensor in replicated.items() if tensor.is_floating_point()}, ranks)
    _take_largest([tensor for name, tensor in replicated.items() if name.endswith(COUNTER)], ranks)


def spread(variance: Tensor, own: Tensor, mean: Tensor) -> Tensor:
    """Return the contribution of one rank to the variance over all ranks; the mean of the contributions is the result.

    Law of total variance, Var[X] = E[Var[X|R]] + Var[E[X|R]], over ranks R with the same number of samples each.

    Args:
        variance: Variance on this rank.
        own: Mean on this rank.
        mean: Mean over all ranks.
    """
    return variance + (own - mean).square()


def _average(tensors: Mapping[str, Tensor], ranks: Ranks) -> None:
    # Two all-reduces: the contribution to a variance requires the mean over all ranks.
    centers = {name: center for name in tensors if (center := _centre_of(name)) in tensors}
    local = {name: wide(tensor) for name, tensor in tensors.items() if name not in centers}
    means = _means(local, ranks)
    spreads = {name: spread(wide(tensors[name]), local[center], means[center]) for name, center in centers.items()}
    for name, value in (means | _means(spreads, ranks)).items():
        tensors[name].copy_(value)


def _take_largest(counters: Sequence[Tensor], ranks: Ranks) -> None:
    if counters:
        # Only affects layers with momentum=None, whose cumulative average divides by the counter.
        largest = ranks.reduce("sync: maximum of the batch counters", torch.stack(list(counters)), "max")
        for counter, value in zip(counters, largest, strict=True):
            counter.copy_(value)


def _centre_of(name: str) -> str:
    """Return the name of the mean that belongs to a variance; "" if `name` is not a variance."""
    return name.removesuffix(VARIANCE) + MEAN if name.endswith(VARIANCE) else ""


def _means(tensors: Mapping[str, Tensor], ranks: Ranks) -> dict[str, Tensor]:
    """Return the means over the ranks."""
    if not tensors:
        return {}
    # One flat tensor, because the latency of an all-reduce per tensor dominates for small statistics.
    flat = torch.cat([tensor.flatten() for tensor in tensors.values()])
    total = ranks.reduce("sync: sums of the averaged tensors", flat)
    parts = (total / ranks.world_size).split([tensor.numel() for tensor in tensors.values()])
    return {name: part.view_as(tensors[name]) for name, part in zip(tensors, parts, strict=True)}
