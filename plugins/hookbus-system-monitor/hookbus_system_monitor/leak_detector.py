"""Detection of steady growth by a least-squares fit of the last values.

Usable without hookbus.
"""

from __future__ import annotations

from collections import deque
from statistics import correlation, linear_regression

__all__ = ["LeakDetector"]

MIN_R_SQUARED = 0.95
MIN_RELATIVE_GROWTH = 0.02


class LeakDetector:
    """Detect steady growth of a value once.

    A value grows steadily if the linear fit of a full window has an R^2 of at least 0.95 and rises over the window by
    at least 2 % of the last value. Steps and growth that levels off meet these conditions at most briefly.

    Args:
        size: Number of points in the window, at least 3.
    """

    def __init__(self, size: int = 20) -> None:
        self._points: deque[tuple[float, float]] = deque(maxlen=size)
        self._is_reported = False

    def add(self, x: float, y: float) -> float | None:
        """Add a point.

        Args:
            x: Position, greater than the previous one.
            y: Value, greater than 0.

        Returns:
            Increase per unit of x when steady growth is detected for the first time, otherwise None.
        """
        self._points.append((x, y))
        if self._is_reported or len(self._points) < (self._points.maxlen or 0):
            return None
        xs, ys = zip(*self._points, strict=True)
        slope = linear_regression(xs, ys).slope
        is_growing = slope * (x - xs[0]) >= MIN_RELATIVE_GROWTH * y
        self._is_reported = is_growing and correlation(xs, ys) ** 2 >= MIN_R_SQUARED
        return slope if self._is_reported else None
