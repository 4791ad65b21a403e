"""Range test for the learning rate (Smith 2017, "Cyclical Learning Rates for Training Neural Networks").

The learning rate grows at each step, and the loss is averaged exponentially with the bias correction of Adam (Gugger
2018, "How Do You Find A Good Learning Rate"; Kingma and Ba 2015). The suggestion is the learning rate at which the
smoothed loss decreases fastest. Usable without hookbus.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

Mode = Literal["exponential", "linear"]

SKIPPED_FRACTION = 10
"""Inverse of the fraction of the steps that the suggestion ignores at the start, where the average has few values."""
MIN_POINTS = 3
"""Smallest number of points of which a slope is computed on both sides."""


def get_rates(min_lr: float, max_lr: float, count: int, mode: Mode) -> list[float]:
    """Return the learning rates of a test, both ends included.

    Args:
        min_lr: First learning rate, greater than 0.
        max_lr: Last learning rate.
        count: Number of learning rates, at least 2.
        mode: "exponential" for a constant factor between two of them, "linear" for a constant difference.
    """
    shares = [i / (count - 1) for i in range(count)]
    if mode == "linear":
        return [min_lr + share * (max_lr - min_lr) for share in shares]
    # Not a product of factors, whose rounding errors add up.
    return [min_lr ** (1 - share) * max_lr**share for share in shares]


class Smoother:
    """Exponential moving average with bias correction.

    Args:
        weight: Weight of the earlier values, in [0, 1).
    """

    def __init__(self, weight: float) -> None:
        self._weight, self._sum, self._count = weight, 0.0, 0

    def update(self, value: float) -> float:
        """Return the average of all values with a further one."""
        self._count += 1
        self._sum = self._weight * self._sum + (1 - self._weight) * value
        return self._sum / (1 - self._weight**self._count)


@dataclass(frozen=True)
class RangeTest:
    """Result of a range test.

    Attributes:
        rates: Learning rates, of the parameter group with the largest one.
        losses: Smoothed loss at each of them; the last one may be infinite or NaN.
        planned: Number of steps of a test that does not end early.
        suggestion: Learning rate with the steepest decrease of the loss; None if there is none.
        problem: Reason why there is no suggestion; "" if there is one.
    """

    rates: tuple[float, ...]
    losses: tuple[float, ...]
    planned: int
    suggestion: float | None = field(init=False)
    problem: str = field(init=False)

    def __post_init__(self) -> None:
        """Compute the suggestion."""
        index, problem = find_steepest(self.losses, self.planned // SKIPPED_FRACTION)
        object.__setattr__(self, "suggestion", None if index is None else self.rates[index])
        object.__setattr__(self, "problem", problem)

    @property
    def rows(self) -> list[dict[str, float]]:
        """Rows of a table with the columns `lr` and `loss`."""
        return [{"lr": rate, "loss": loss} for rate, loss in zip(self.rates, self.losses, strict=True)]

    def to_csv(self) -> str:
        """Return the table as CSV text with a header."""
        text = io.StringIO()
        writer = csv.DictWriter(text, ["lr", "loss"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        return text.getvalue()


def find_steepest(losses: Sequence[float], skip: int) -> tuple[int | None, str]:
    """Return the index at which a loss decreases fastest, and the reason if there is none.

    The slope is a central difference, at the ends a one-sided one, over equal steps: over the logarithm of the learning
    rate in an exponential test, over the learning rate itself in a linear one. The last loss is ignored as well.

    Args:
        losses: Losses.
        skip: Number of losses to ignore at the start.
    """
    used = [(i, loss) for i, loss in enumerate(losses[:-1]) if i >= skip and math.isfinite(loss)]
    if len(used) < MIN_POINTS:
        return None, f"the test has {len(losses)} steps, of which {len(used)} are used, and {MIN_POINTS} are required"
    values = [loss for _, loss in used]
    slopes = [values[1] - values[0]]
    slopes += [(after - before) / 2 for before, after in zip(values, values[2:], strict=False)]
    slopes.append(values[-1] - values[-2])
    steepest = min(range(len(slopes)), key=slopes.__getitem__)
    if slopes[steepest] >= 0:
        return None, "the loss does not decrease at any learning rate"
    return used[steepest][0], ""
