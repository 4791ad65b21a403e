"""Learning rate schedule of YOLOX (Ge et al., 2021) as a function of the position in the training."""

from __future__ import annotations

import math


def yolox_lr(
    number: float, *, base: float, floor: float, total: float, warmup: float = 0, last: float = 0, offset: float = 0
) -> float:
    """Return the learning rate: quadratic warm-up, cosine decay from `base` to `floor`, then `floor`.

    All lengths have the same unit as `number`.

    Args:
        number: Number of the iteration or epoch, from 1.
        base: Learning rate at the end of the warm-up.
        floor: Final learning rate.
        total: Length of the training.
        warmup: Length of the warm-up; 0 for no warm-up.
        last: Length of the final phase with a constant learning rate.
        offset: Offset that the cosine subtracts from `number`; 1 evaluates the start of an epoch instead of its end.
    """
    if number <= warmup:
        return base * (number / warmup) ** 2
    done, length = number - offset - warmup, total - last - warmup
    # Also avoids a division by zero: warm-up and final phase may cover the whole training.
    if done >= length:
        return floor
    return floor + (base - floor) / 2 * (1 + math.cos(math.pi * done / length))
