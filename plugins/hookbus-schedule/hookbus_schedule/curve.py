"""The learning rate of the YOLOX recipe (Ge et al. 2021), as a function of the place in the training."""

from __future__ import annotations

import math

__all__ = ["yolox_lr"]


def yolox_lr(
    number: float, *, base: float, floor: float, total: float, warmup: float = 0, last: float = 0, offset: float = 0
) -> float:
    """A quadratic warm-up, then a cosine from `base` to `floor`, then `floor`.

    All lengths are in one unit, that of `number`.

    Args:
        number: the number, from 1, of the iteration or epoch.
        base: the rate at the end of the warm-up.
        floor: the rate at the end.
        total: the length of the training.
        warmup: the length of the warm-up; 0 for none.
        last: the length of the constant part at the end.
        offset: how far behind `number` the cosine is: 1 lets an epoch have the rate of its beginning.
    """
    if number <= warmup:
        return base * (number / warmup) ** 2
    done, length = number - offset - warmup, total - last - warmup
    if done >= length:
        return floor
    return floor + (base - floor) / 2 * (1 + math.cos(math.pi * done / length))
