"""Average of weights with equal or custom weights. Depends on PyTorch only."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from hookbus_ema.average import WeightAverage
from hookbus_ema.tensors import Group

AverageFunction = Callable[[Tensor, Tensor, int], Tensor]
"""Function (average, weight, number of averaged weights) that returns the new average of a tensor."""


class EqualAverage(WeightAverage):
    """Average with equal weights of all updates: after n updates the mean of the n weights.

    It is that of `torch.optim.swa_utils.AveragedModel`, also with a custom function: the first update copies the
    weights, and the function computes the later ones.

    Args:
        weights, update_buffers, device: As for `WeightAverage`.
        avg_fn: Function that replaces the mean, such as the result of `torch.optim.swa_utils.get_ema_avg_fn(0.9)`. It
            is called without gradients for each tensor, with the weight in the type and on the device of the average.
            Default: equal weights.
    """

    def __init__(
        self,
        weights: nn.Module | Mapping[str, Tensor],
        avg_fn: AverageFunction | None = None,
        *,
        update_buffers: bool = False,
        device: torch.device | str | None = None,
    ) -> None:
        self._avg_fn = avg_fn
        super().__init__(weights, update_buffers=update_buffers, device=device)

    def get_alpha(self, step: int) -> float:
        """Return the weight of the current weights in an update, from 1."""
        return 1 / step

    def _update_group(self, group: Group, alpha: float) -> None:
        if self._avg_fn is None or self.steps == 1:
            super()._update_group(group, alpha)
            return
        for average, weight in zip(group.averages, group.stage(), strict=True):
            average.copy_(self._avg_fn(average, weight, self.steps - 1))
