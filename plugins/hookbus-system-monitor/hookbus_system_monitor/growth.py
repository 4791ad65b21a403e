"""Detection of steady growth by a least-squares fit of the last values.

Usable without hookbus.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

__all__ = ["Growth", "Line", "line_through"]

LEAST_SHARE_EXPLAINED = 0.95
LEAST_GROWTH = 0.02


@dataclass(frozen=True, slots=True)
class Line:
    """Linear fit.

    Attributes:
        slope: Increase of y per unit of x.
        explained: Coefficient of determination (R^2), from 0 to 1.
    """

    slope: float
    explained: float


def line_through(points: list[tuple[float, float]]) -> Line:
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
    return Line(xy / xx, xy * xy / (xx * yy) if yy else 0.0)


class Growth:
    """Detect steady growth of a value once.

    A value grows steadily if the linear fit of a full window has an R^2 of at least 0.95 and rises over the window by
    at least 2 % of the last value. Steps and growth that levels off meet these conditions at most briefly.

    Args:
        size: Number of points in the window, at least 3.
    """

    def __init__(self, size: int = 20) -> None:
        self._points: deque[tuple[float, float]] = deque(maxlen=size)
        self._told = False

    def add(self, x: float, y: float) -> float | None:
        """Add a point.

        Args:
            x: Position, greater than the previous one.
            y: Value, greater than 0.

        Returns:
            Increase per unit of x when steady growth is detected for the first time, otherwise None.
        """
        self._points.append((x, y))
        if self._told or len(self._points) < (self._points.maxlen or 0):
            return None
        line = line_through(list(self._points))
        rise = line.slope * (x - self._points[0][0])
        self._told = line.explained >= LEAST_SHARE_EXPLAINED and rise >= LEAST_GROWTH * y
        return line.slope if self._told else None
