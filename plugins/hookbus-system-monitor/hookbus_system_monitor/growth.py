"""Does something grow, and how fast? A straight line through the last values, by least squares.

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
    """A straight line through points.

    Attributes:
        slope: its growth per unit of x.
        explained: which share of the variation of y it explains (the coefficient of determination), from 0 to 1.
    """

    slope: float
    explained: float


def line_through(points: list[tuple[float, float]]) -> Line:
    """The line of least squares: slope = sum((x - mx)(y - my)) / sum((x - mx)^2).

    Args:
        points: (x, y), at least two different x.
    """
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    xx = sum((x - mean_x) ** 2 for x, _ in points)
    yy = sum((y - mean_y) ** 2 for _, y in points)
    xy = sum((x - mean_x) * (y - mean_y) for x, y in points)
    return Line(xy / xx, xy * xy / (xx * yy) if yy else 0.0)


class Growth:
    """Watches a value over a window of the last points, and tells once that it grows steadily.

    It grows steadily if the line through a full window explains at least 95 % of the variation and rises, over the
    window, by at least 2 % of where it ends. A step, or a rise that levels off, does neither for long.

    Args:
        size: points of the window; at least 3.
    """

    def __init__(self, size: int = 20) -> None:
        self._points: deque[tuple[float, float]] = deque(maxlen=size)
        self._told = False

    def add(self, x: float, y: float) -> float | None:
        """Take a point in.

        Args:
            x: where; greater than the last.
            y: the value, greater than 0.

        Returns:
            The growth per unit of x at the first time that it is steady, else None.
        """
        self._points.append((x, y))
        if self._told or len(self._points) < (self._points.maxlen or 0):
            return None
        line = line_through(list(self._points))
        rise = line.slope * (x - self._points[0][0])
        self._told = line.explained >= LEAST_SHARE_EXPLAINED and rise >= LEAST_GROWTH * y
        return line.slope if self._told else None
