"""Copy of an optimizer on which schedulers are built to check them before training."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn


def copy_optimizer(optimizer: Any) -> Any:
    """Return a copy of an optimizer with its settings and dummy parameters; None if it cannot be copied.

    Args:
        optimizer: Optimizer, which is not modified; None for none.
    """
    groups = getattr(optimizer, "param_groups", [])
    # `deepcopy` replaces objects found in its memo, so neither the parameters nor their state are copied.
    memo: dict[int, Any] = {id(weight): nn.Parameter(torch.zeros(1)) for group in groups for weight in group["params"]}
    if (state := getattr(optimizer, "state", None)) is not None:
        memo[id(state)] = {}
    try:
        return copy.deepcopy(optimizer, memo)
    except Exception:  # an optimizer that holds an object that cannot be copied; the check is optional
        return None
