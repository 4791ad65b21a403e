"""What a hook needs from the loop, compared with what another trainer offers."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Needs:
    """What a hook needs from the loop. Everything that is not listed may be missing; the hook then works without it.

    Requests are declared by `Hook.schedules_validation` and `Hook.skips_iterations`.

    Args:
        points: Points that must be emitted. A tuple of points is satisfied by any one of them.
        gradients: Points at one of which the gradients of the model must be available.
        batch: Whether the batch must be passed to the points of iterations.
        outputs: Whether the outputs of the model must be passed to `after_train_iter` or `after_val_iter`.
        loss: Whether the loss of each training iteration must be passed, as a tensor or a number.
        modules: Whether the layers of the model must be modules of `torch.nn`.
        data: Whether the hook modifies the dataset or the sampler of the training loader.
        optimizer: Whether the optimizer must be one of `torch.optim`.
    """

    points: Collection[str | tuple[str, ...]] = ()
    gradients: Collection[str] = ()
    batch: bool = False
    outputs: bool = False
    loss: bool = False
    modules: bool = False
    data: bool = False
    optimizer: bool = False
