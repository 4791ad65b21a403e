"""Warnings about one memory size: above a threshold, and steady growth.

Usable without hookbus.
"""

from __future__ import annotations

from collections.abc import Iterator

from hookbus_system_monitor.leak_detector import LeakDetector
from hookbus_system_monitor.readings import GB

__all__ = ["ThresholdWatch"]


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
