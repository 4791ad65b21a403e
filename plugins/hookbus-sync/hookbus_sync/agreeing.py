"""Tensors that become the same on all processes."""

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
    """Make tensors the same on all processes, in place.

    A `running_var` becomes the variance of all samples together, see `spread`, where the `running_mean` beside it is
    known. `num_batches_tracked` becomes the largest, anything else with fractions the mean over the processes, each of
    which counts alike. Other whole numbers are left alone, and so are tensors that are spread over the processes.

    Args:
        tensors: by name, the same names and shapes on all processes.
        ranks: the processes.
    """
    whole = {name: tensor.detach() for name, tensor in tensors.items() if not hasattr(tensor, "device_mesh")}
    _average({name: tensor for name, tensor in whole.items() if tensor.is_floating_point()}, ranks)
    _take_largest([tensor for name, tensor in whole.items() if name.endswith(COUNTER)], ranks)


def spread(variance: Tensor, own: Tensor, mean: Tensor) -> Tensor:
    """What the samples of one process add to the variance of all: its mean over the processes is that variance.

    The law of total variance, Var[X] = E[Var[X|R]] + Var[E[X|R]], over processes R with as many samples each.

    Args:
        variance: within this process.
        own: the mean of this process.
        mean: the mean over all processes.
    """
    return variance + (own - mean).square()


def _average(tensors: Mapping[str, Tensor], ranks: Ranks) -> None:
    centres = {name: centre for name in tensors if (centre := _centre_of(name)) in tensors}
    own = {name: wide(tensor) for name, tensor in tensors.items() if name not in centres}
    means = _means(own, ranks)
    spreads = {name: spread(wide(tensors[name]), own[centre], means[centre]) for name, centre in centres.items()}
    for name, value in (means | _means(spreads, ranks)).items():
        tensors[name].copy_(value)


def _take_largest(counters: Sequence[Tensor], ranks: Ranks) -> None:
    if counters:
        largest = ranks.reduce("sync: the largest counters", torch.stack(list(counters)), "max")
        for counter, value in zip(counters, largest, strict=True):
            counter.copy_(value)


def _centre_of(name: str) -> str:
    """The mean that a variance is taken around; "" for what is no variance."""
    return name.removesuffix(VARIANCE) + MEAN if name.endswith(VARIANCE) else ""


def _means(tensors: Mapping[str, Tensor], ranks: Ranks) -> dict[str, Tensor]:
    """The means over the processes, in one exchange."""
    if not tensors:
        return {}
    total = ranks.reduce("sync: the sums of what is averaged", torch.cat([each.flatten() for each in tensors.values()]))
    parts = (total / ranks.world_size).split([each.numel() for each in tensors.values()])
    return {name: part.view_as(tensors[name]) for name, part in zip(tensors, parts, strict=True)}
