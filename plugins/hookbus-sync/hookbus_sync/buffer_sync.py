"""Synchronization of buffers and normalization statistics across ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from hookbus.distributed import Collectives


MEAN, VARIANCE, COUNTER = "running_mean", "running_var", "num_batches_tracked"


def sync_tensors(tensors: Mapping[str, Tensor], ranks: Collectives) -> None:
    """Synchronize tensors across ranks, in place.

    A `running_var` with a `running_mean` of the same layer becomes the variance over the samples of all ranks, see
    `variance_across_ranks`. `num_batches_tracked` becomes the maximum, any other floating-point tensor the unweighted
    mean over the ranks. Other integer tensors and sharded tensors are not modified.

    Args:
        tensors: Tensors by name; names and shapes must be the same on all ranks.
        ranks: Collectives of the run.
    """
    # Ranks store different shards of a DTensor, so there is nothing to average.
    replicated = {name: tensor.detach() for name, tensor in tensors.items() if not hasattr(tensor, "device_mesh")}
    _sync_means({name: tensor for name, tensor in replicated.items() if tensor.is_floating_point()}, ranks)
    _sync_counters([tensor for name, tensor in replicated.items() if name.endswith(COUNTER)], ranks)


def variance_across_ranks(variance: Tensor, local_mean: Tensor, mean: Tensor) -> Tensor:
    """Return the contribution of one rank to the variance over all ranks; the mean of the contributions is the result.

    Law of total variance, Var[X] = E[Var[X|R]] + Var[E[X|R]], over ranks R with the same number of samples each.

    Args:
        variance: Variance on this rank.
        local_mean: Mean on this rank.
        mean: Mean over all ranks.
    """
    return variance + (local_mean - mean).square()


def to_widest_float(tensor: Tensor) -> Tensor:
    """Convert a tensor to float64, or to float32 on MPS, which does not support float64."""
    return tensor.to(torch.float32 if tensor.device.type == "mps" else torch.float64)


def _sync_means(tensors: Mapping[str, Tensor], ranks: Collectives) -> None:
    # Two all-reduces: the contribution to a variance requires the mean over all ranks.
    variances = (name for name in tensors if name.endswith(VARIANCE))
    centers = {name: mean for name in variances if (mean := name.removesuffix(VARIANCE) + MEAN) in tensors}
    local = {name: to_widest_float(tensor) for name, tensor in tensors.items() if name not in centers}
    means = _all_reduce_means(local, ranks)
    contributions = {
        name: variance_across_ranks(to_widest_float(tensors[name]), local[center], means[center])
        for name, center in centers.items()
    }
    for name, value in (means | _all_reduce_means(contributions, ranks)).items():
        tensors[name].copy_(value)


def _sync_counters(counters: Sequence[Tensor], ranks: Collectives) -> None:
    if counters:
        # Only affects layers with momentum=None, whose cumulative average divides by the counter.
        largest = ranks.all_reduce("sync: maximum of the batch counters", torch.stack(list(counters)), "max")
        for counter, value in zip(counters, largest, strict=True):
            counter.copy_(value)


def _all_reduce_means(tensors: Mapping[str, Tensor], ranks: Collectives) -> dict[str, Tensor]:
    """Return the means over the ranks."""
    if not tensors:
        return {}
    # One flat tensor, because the latency of an all-reduce per tensor dominates for small statistics.
    flat = torch.cat([tensor.flatten() for tensor in tensors.values()])
    total = ranks.all_reduce("sync: sums of the averaged tensors", flat)
    parts = (total / ranks.world_size).split([tensor.numel() for tensor in tensors.values()])
    return {name: part.view_as(tensors[name]) for name, part in zip(tensors, parts, strict=True)}
