"""Momentum schedules based on learning rate schedulers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["MomentumSchedule"]


class MomentumSchedule:
    """Apply a learning rate scheduler to the momentum of an optimizer.

    The scheduler steps a proxy optimizer whose learning rates are the momenta; after each step the values are copied to
    the optimizer.

    Args:
        optimizer: Optimizer whose groups have `momentum`, or `betas`, of which the first is scheduled.
        factory: Function that returns a scheduler for the proxy optimizer.

    Raises:
        ValueError: If a group has neither `momentum` nor `betas`.
    """

    def __init__(self, optimizer: Any, factory: Callable[[torch.optim.Optimizer], Any]) -> None:
        self._optimizer = optimizer  # not its groups, which Optimizer.load_state_dict replaces
        momenta = [_get_momentum(group) for group in optimizer.param_groups]
        self._proxy = torch.optim.SGD([{"params": [torch.zeros(1)], "lr": value} for value in momenta])
        self._scheduler = factory(self._proxy)
        # Without gradients this is a no-op. It prevents the warning of torch that the scheduler is stepped before the
        # optimizer.
        self._proxy.step()
        self._copy_momenta()

    def step(self, *arguments: Any) -> None:
        """Step the scheduler and set the momenta of the optimizer.

        Args:
            *arguments: Arguments of `step()` of the scheduler.
        """
        self._add_groups()
        self._scheduler.step(*arguments)
        self._copy_momenta()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the scheduler."""
        return self._scheduler.state_dict()  # type: ignore[no-any-return]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state returned by `state_dict()`. The state of the optimizer must be restored before."""
        self._add_groups()
        self._scheduler.load_state_dict(state)
        for proxy_group, group in zip(self._proxy.param_groups, self._optimizer.param_groups, strict=True):
            proxy_group["lr"] = _get_momentum(group)

    def _add_groups(self) -> None:
        # Groups may be added to the optimizer during the training, for instance for unfrozen layers.
        for group in self._optimizer.param_groups[len(self._proxy.param_groups) :]:
            first = _get_momentum(group)
            self._proxy.add_param_group({"params": [torch.zeros(1)], "lr": first, "initial_lr": first})

    def _copy_momenta(self) -> None:
        for proxy_group, group in zip(self._proxy.param_groups, self._optimizer.param_groups, strict=True):
            if "betas" in group:
                group["betas"] = (proxy_group["lr"], *group["betas"][1:])
            else:
                group["momentum"] = proxy_group["lr"]


def _get_momentum(group: dict[str, Any]) -> float:
    if "betas" in group:
        return float(group["betas"][0])
    if "momentum" not in group:
        raise ValueError("the optimizer must have momentum or betas to schedule the momentum, got neither.")
    return float(group["momentum"])
