"""Detection of steady growth by a least-squares fit of the last values.

Usable without hookbus.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

__all__ = ["LeakDetector", "LinearFit", "fit_line"]

MIN_R_SQUARED = 0.95
MIN_RELATIVE_GROWTH = 0.02


@dataclass(frozen=True, slots=True)
class LinearFit:
    """Linear fit.

    Attributes:
        slope: Increase of y per unit of x.
        r_squared: Coefficient of determination (R^2), from 0 to 1.
    """

    slope: float
    r_squared: float


def fit_line(points: list[tuple[float, float]]) -> LinearFit:
    """Fit a line by least squares: slope = sum((x - mx)(y - my)) / sum((x - mx)^2).

    Args:
        points: Pairs (x, y) with at least two distinct x.

    Returns:
        The fit; R^2 is 0 if all y are equal.
    """
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    xx = sum((x - mean_x) ** 2 for x, _ in points)
    yy = sum((y - mean_y) ** 2 for _, y in points)
    xy = sum((x - mean_x) * (y - mean_y) for x, y in points)
    return LinearFit(xy / xx, xy * xy / (xx * yy) if yy else 0.0)


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
        line = fit_line(list(self._points))
        rise = line.slope * (x - self._points[0][0])
        self._is_reported = line.r_squared >= MIN_R_SQUARED and rise >= MIN_RELATIVE_GROWTH * y
        return line.slope if self._is_reported else None
