"""Momentum on the schedule of a learning rate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["MomentumSchedule"]


class MomentumSchedule:
    """Lets a scheduler of learning rates change the momentum of an optimizer instead.

    The scheduler works on a stand-in whose learning rates are the momenta; after each step they are copied over.

    Args:
        optimizer: its groups have `momentum`, or `betas`, of which the first is meant.
        make: makes the scheduler of the stand-in.

    Raises:
        ValueError: a group has no momentum.
    """

    def __init__(self, optimizer: Any, make: Callable[[torch.optim.Optimizer], Any]) -> None:
        self._optimizer = optimizer  # not its groups: it makes new ones when it loads a state
        momenta = [_momentum_of(group) for group in optimizer.param_groups]
        self._stand_in = torch.optim.SGD([{"params": [torch.zeros(1)], "lr": value} for value in momenta])
        self._scheduler = make(self._stand_in)
        self._stand_in.step()  # it updates nothing; torch warns of schedulers that come before the first update
        self._copy()

    def step(self, *arguments: Any) -> None:
        """Step the scheduler, and set the momenta."""
        self._add_groups()
        self._scheduler.step(*arguments)
        self._copy()

    def state_dict(self) -> dict[str, Any]:
        """The state of the scheduler."""
        return self._scheduler.state_dict()  # type: ignore[no-any-return]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave; the optimizer has its momenta back already."""
        self._add_groups()
        self._scheduler.load_state_dict(state)
        for stand_in, group in zip(self._stand_in.param_groups, self._optimizer.param_groups, strict=True):
            stand_in["lr"] = _momentum_of(group)

    def _add_groups(self) -> None:
        """Groups that the optimizer got since then."""
        for group in self._optimizer.param_groups[len(self._stand_in.param_groups) :]:
            first = _momentum_of(group)
            self._stand_in.add_param_group({"params": [torch.zeros(1)], "lr": first, "initial_lr": first})

    def _copy(self) -> None:
        for stand_in, group in zip(self._stand_in.param_groups, self._optimizer.param_groups, strict=True):
            if "betas" in group:
                group["betas"] = (stand_in["lr"], *group["betas"][1:])
            else:
                group["momentum"] = stand_in["lr"]


def _momentum_of(group: dict[str, Any]) -> float:
    if "betas" in group:
        return float(group["betas"][0])
    if "momentum" not in group:
        raise ValueError("the optimizer has neither momentum nor betas, so there is no momentum to schedule.")
    return float(group["momentum"])
