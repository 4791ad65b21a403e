"""Warnings about one memory size: above a threshold, and steady growth.

Usable without hookbus.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from statistics import correlation, linear_regression

from hookbus_system_monitor.readings import GB

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


class ThresholdWatch:
    """Warn each time a memory size rises above a limit, and once about steady growth.

    Args:
        label: Name of the memory for messages.
        limit: Limit in GB; None for no limit.
    """

    def __init__(self, label: str, limit: float | None) -> None:
        self._label, self._limit = label, limit
        self._is_above_limit = False
        self._leak_detector = LeakDetector()

    def update(self, iteration: int, size: int) -> Iterator[str]:
        """Add a size and yield the warnings.

        Args:
            iteration: Number of the iteration, greater than the previous one.
            size: Size in bytes.
        """
        is_above = self._limit is not None and size > self._limit * GB
        if is_above and not self._is_above_limit:
            yield f"{self._label} is {size / GB:.2f} GB, which exceeds the `warn_threshold` of {self._limit:g} GB."
        self._is_above_limit = is_above
        rate = self._leak_detector.add(iteration, size)
        if rate is not None:
            yield (
                f"{self._label} grows steadily, by {1000 * rate / GB:.3g} GB per 1000 iterations, and is now "
                f"{size / GB:.2f} GB, which indicates a memory leak. Detach stored losses and limit the size of caches."
            )
