"""Search for the largest size that fits, by doubling and bisection. Usable without hookbus."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Mode = Literal["power", "binsearch"]


@dataclass(frozen=True)
class SizeSearch:
    """Result of a search.

    Attributes:
        trials: Sizes in the order of their trials, and whether each of them fits.
        margin: Fraction by which the result is less than the largest size that fits.
    """

    trials: tuple[tuple[int, bool], ...]
    margin: float

    @property
    def largest(self) -> int | None:
        """Largest size that fits; None if no size does."""
        return max((size for size, fits in self.trials if fits), default=None)

    @property
    def size(self) -> int | None:
        """Largest size less the margin, at least 1; without the margin if no size has failed."""
        largest = self.largest
        if largest is None or all(fits for _, fits in self.trials):
            return largest
        # The product of a fraction such as 0.95 may be slightly less than a whole number.
        return max(int(largest * (1 - self.margin) + 1e-9), 1)


def search_size(
    fits: Callable[[int], bool], *, first: int, limit: int, max_trials: int, mode: Mode, margin: float = 0.0
) -> SizeSearch:
    """Search for the largest size that fits.

    The size is doubled until one fails, or halved until one fits if the first one fails. In the mode "binsearch" the
    interval between the largest size that fits and the smallest one that does not is then bisected.

    Args:
        fits: Function that tries a size; called once for each size.
        first: First size.
        limit: Largest size to try.
        max_trials: Maximum number of sizes to try.
        mode: "power" or "binsearch".
        margin: Fraction by which the result is less than the largest size that fits.
    """
    trials: dict[int, bool] = {}
    size: int | None = min(first, limit)
    while size is not None and len(trials) < max_trials:
        trials[size] = fits(size)
        size = _get_next_size(trials, size, limit, mode)
    return SizeSearch(tuple(trials.items()), margin)


def _get_next_size(trials: dict[int, bool], last: int, limit: int, mode: Mode) -> int | None:
    """Return the size to try after the last one; None at the end of the search."""
    good = max((size for size, fits in trials.items() if fits), default=0)
    bad = min((size for size, fits in trials.items() if not fits), default=None)
    if bad is None:
        return min(2 * last, limit) if last < limit else None
    if not good:
        return last // 2 or None
    middle = (good + bad) // 2
    return middle if mode == "binsearch" and middle > good else None
