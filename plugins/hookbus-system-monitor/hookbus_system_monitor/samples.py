"""What was sampled: the means since the last look, and the course of the whole run in bounded memory.

Usable without hookbus. One thread adds, another one looks.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping

from hookbus_system_monitor.readings import Values

__all__ = ["Samples"]


class Samples:
    """Sums up samples for the next record, and keeps a course of at most `size` points over the whole run.

    A full course is thinned out to every second point, and from then on takes only every second sample.

    Args:
        size: the most points of the course; at least 2.
    """

    def __init__(self, size: int = 2000) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._sums: dict[str, tuple[float, int, float]] = {}  # the sum, of how many, and the last of them
        self._course: list[tuple[float, Values]] = []
        self._seen, self._stride = 0, 1

    def add(self, seconds: float, values: Values) -> None:
        """Take a sample in.

        Args:
            seconds: when, since the beginning.
            values: numbers by name; one that is None or not finite counts for nothing.
        """
        known = {name: value for name, value in values.items() if value is not None and math.isfinite(value)}
        with self._lock:
            for name, value in known.items():
                total, count, _ = self._sums.get(name, (0.0, 0, 0.0))
                self._sums[name] = (total + value, count + 1, value)
            if self._seen % self._stride == 0:
                self._keep(seconds, known)
            self._seen += 1

    def take(self) -> dict[str, float]:
        """The means since the last call; of what adds up by itself (joules) the last. Empty without new samples."""
        with self._lock:
            sums, self._sums = self._sums, {}
        return {name: last if name.endswith("joules") else total / count for name, (total, count, last) in sums.items()}

    def course(self) -> tuple[list[float], Mapping[str, list[float | None]]]:
        """Seconds since the beginning, and by name as many numbers, None where there was none."""
        with self._lock:
            course = list(self._course)
        names = dict.fromkeys(name for _, values in course for name in values)
        return [seconds for seconds, _ in course], {name: [row.get(name) for _, row in course] for name in names}

    def _keep(self, seconds: float, values: Mapping[str, float]) -> None:
        if len(self._course) >= self._size:
            self._course = self._course[::2]
            self._stride *= 2
            if self._seen % self._stride:
                return
        self._course.append((seconds, dict(values)))
