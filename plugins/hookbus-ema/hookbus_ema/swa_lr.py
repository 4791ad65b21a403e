"""Learning rates of stochastic weight averaging. Does not import hookbus."""

from __future__ import annotations

import math
from typing import Literal


def anneal(
    epoch: int, *, initial: float, final: float, annealing_epochs: int, strategy: Literal["cos", "linear"]
) -> float:
    """Return the learning rate of an epoch, as `torch.optim.swa_utils.SWALR` that is stepped once per epoch.

    Args:
        epoch: Number of epochs since the start of the annealing, from 0.
        initial: Learning rate at the start.
        final: Learning rate after the annealing.
        annealing_epochs: Length of the annealing; 0: `final` from the first epoch on.
        strategy: Half a cosine, or a line.
    """
    done = min(1.0, epoch / annealing_epochs) if annealing_epochs else 1.0
    share = (1 - math.cos(math.pi * done)) / 2 if strategy == "cos" else done
    return final * share + initial * (1 - share)
