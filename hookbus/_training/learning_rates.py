"""Change of the learning rates of a training, together with its schedulers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from torch import Tensor

from hookbus._training.lr_scheduler import iter_schedulers
from hookbus.errors import ConfigError

GROUP_KEYS = ("lr", "initial_lr", "max_lr", "min_lr")
"""Learning rates in the parameter groups; the last two are those of a OneCycleLR."""

SCHEDULER_LISTS = ("base_lrs", "max_lrs", "_last_lr")
"""Attributes of torch's schedulers with one learning rate per parameter group; `max_lrs` is that of a CyclicLR."""


def scale_learning_rates(optimizers: Iterable[Any], schedulers: Iterable[Any], factor: float) -> None:
    """Multiply the learning rates of parameter groups, and the base values of schedulers, by a factor.

    Absolute bounds, such as `eta_min`, are unchanged.

    Args:
        optimizers: Optimizers.
        schedulers: Schedulers of these optimizers, with nested ones; each is scaled once.
        factor: Factor, greater than 0.

    Raises:
        ConfigError: If the factor is not a finite number greater than 0.
    """
    if not (math.isfinite(factor) and factor > 0):
        raise ConfigError(f"factor of the learning rates: expected a finite number > 0, got {factor!r}.")
    scale = _Scaling(factor).apply
    groups = {id(group): group for optimizer in optimizers for group in getattr(optimizer, "param_groups", ())}
    for group in groups.values():
        group.update({key: scale(group[key]) for key in GROUP_KEYS if group.get(key) is not None})
    # A SequentialLR shares a list with its first part.
    parts = [part for scheduler in schedulers for part in iter_schedulers(scheduler)]
    lists = {id(values): values for part in parts for values in _get_lists(part)}
    for values in lists.values():
        values[:] = map(scale, values)


class _Scaling:
    """Multiplication by a factor, once for each tensor."""

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self._tensors: dict[int, Tensor] = {}

    def apply(self, value: Any) -> Any:
        """Return a number times the factor; a tensor is changed in place."""
        if not isinstance(value, Tensor):
            return value * self._factor
        # Compiled and capturable optimizers reference the tensor, and schedulers may share it with them.
        if id(value) not in self._tensors:
            self._tensors[id(value)] = value.mul_(self._factor)
        return value


def _get_lists(scheduler: Any) -> list[list[Any]]:
    values = (getattr(scheduler, name, None) for name in SCHEDULER_LISTS)
    return [value for value in values if isinstance(value, list)]
