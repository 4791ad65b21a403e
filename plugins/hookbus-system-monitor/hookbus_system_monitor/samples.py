"""Storage of samples: means since the last record, and a history of the run in bounded memory.

Usable without hookbus. Thread-safe: one thread adds samples, another one reads them.
"""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Mapping

from hookbus_system_monitor.readings import Values


class Samples:
    """Sum up samples for the next record, and store a history of at most `size` points.

    A full history is reduced to every second point, after which only every second sample is stored.

    Args:
        size: Maximum number of points in the history, at least 2.
    """

    def __init__(self, size: int = 2000) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._sums: dict[str, tuple[float, int, float]] = {}  # sum, count and last value
        self._history: list[tuple[float, Values]] = []
        self._count, self._stride = 0, 1

    def __getstate__(self) -> dict[str, object]:
        """Return the attributes to copy, without the lock."""
        with self._lock:
            return {name: copy.copy(value) for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, object]) -> None:
        """Set the attributes of a copy, with its own lock."""
        vars(self).update(state, _lock=threading.Lock())

    def add(self, seconds: float, values: Values) -> None:
        """Add a sample.

        Args:
            seconds: Seconds since the start.
            values: Values by name; None and values that are not finite are ignored.
        """
        known = {name: value for name, value in values.items() if value is not None and math.isfinite(value)}
        with self._lock:
            for name, value in known.items():
                total, count, _ = self._sums.get(name, (0.0, 0, 0.0))
                self._sums[name] = (total + value, count + 1, value)
            if self._count % self._stride == 0:
                self._append(seconds, known)
            self._count += 1

    def take(self) -> dict[str, float]:
        """Return the means since the last call; the last value for cumulative ones (joules)."""
        with self._lock:
            sums, self._sums = self._sums, {}
        return {name: last if name.endswith("joules") else total / count for name, (total, count, last) in sums.items()}

    def history(self) -> tuple[list[float], Mapping[str, list[float | None]]]:
        """Return the times in seconds since the start, and the values by name; None for a missing value."""
        with self._lock:
            points = list(self._history)
        names = dict.fromkeys(name for _, values in points for name in values)
        return [seconds for seconds, _ in points], {name: [row.get(name) for _, row in points] for name in names}

    def _append(self, seconds: float, values: Mapping[str, float]) -> None:
        if len(self._history) >= self._size:
            self._history = self._history[::2]
            self._stride *= 2
            if self._count % self._stride:
                return
        self._history.append((seconds, dict(values)))
