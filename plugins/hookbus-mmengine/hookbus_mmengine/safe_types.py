"""Types in checkpoints of MMEngine that `torch.load(weights_only=True)` has to accept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from mmengine.logging import HistoryBuffer

NUMBER_TYPES = (np.bool_, np.int32, np.int64, np.float32, np.float64)
STATISTICS = frozenset({"min", "max", "current", "mean"})


def allow_checkpoint_types() -> None:
    """Allow the types of the message hub, which MMEngine saves in its checkpoints, to be loaded in this process.

    By default `torch.load` accepts tensors and built-in types only, so that MMEngine cannot resume from its own
    checkpoints. The added types contain numbers.
    """
    reconstruct: Any = np.zeros(1).__reduce__()[0]
    scalar: Any = np.float64(0).__reduce__()[0]
    packages = ("numpy.core", "numpy._core")  # NumPy 1 and 2: a checkpoint contains the name of the one that wrote it
    torch.serialization.add_safe_globals(
        [
            HistoryBuffer,
            (get_statistic, "builtins.getattr"),
            np.ndarray,
            np.dtype,
            *{type(np.dtype(number)) for number in NUMBER_TYPES},
            *((reconstruct, f"{package}.multiarray._reconstruct") for package in packages),
            *((scalar, f"{package}.multiarray.scalar") for package in packages),
        ]
    )


def get_statistic(owner: Any, name: str) -> Callable[..., Any]:
    """Return a statistic of `HistoryBuffer`, which its pickles refer to by `getattr`.

    Raises:
        TypeError: If it is another attribute, to which the file of a checkpoint gets no access.
    """
    if owner is not HistoryBuffer or name not in STATISTICS:
        raise TypeError(f"The checkpoint refers to an attribute that is not loaded, got {name!r} of {owner!r}.")
    statistic: Callable[..., Any] = getattr(HistoryBuffer, name)
    return statistic
