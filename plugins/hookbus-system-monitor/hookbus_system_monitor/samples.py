"""Samples: the thread that takes them, their means since the last record, and a history in bounded memory.

Usable without hookbus.
"""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Callable, Mapping

from hookbus_system_monitor.readings import Values


class Samples:
    """Sum up samples for the next record, and store a history of at most `size` points.

    A full history is reduced to every second point, after which only every second sample is stored. Thread-safe: one
    thread adds samples, another one reads them.

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


class Sampler:
    """Daemon thread that calls a function at once and then at an interval until stopped.

    Args:
        sample: Function to call.
        interval: Seconds between the end of a call and the next one.
        name: Name of the thread.
        warn: Function that logs a warning: the first failed call, or a thread that does not end.
    """

    def __init__(self, sample: Callable[[], None], interval: float, *, name: str, warn: Callable[[str], None]) -> None:
        self._sample, self._interval, self._log_warning = sample, interval, warn
        self._stop_event = threading.Event()
        self._failed = False
        # A daemon, so that a call blocked in a driver does not keep the process alive.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> bool:
        """Stop the thread; may be called more than once.

        Args:
            timeout: Maximum number of seconds to wait for a call in progress.

        Returns:
            True if the thread has ended; False if a call is still in progress. The thread then ends after the call.
        """
        self._stop_event.set()
        self._thread.join(timeout)
        if self._thread.is_alive():
            self._log_warning(
                f"a sample is still in progress after {timeout:g} s. Its thread ends when the sample returns."
            )
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stop_event.is_set():
            try:
                self._sample()
            except Exception as error:
                if not self._failed:
                    self._failed = True
                    self._log_warning(f"a sample failed: {type(error).__name__}: {error}. Sampling continues.")
            self._stop_event.wait(self._interval)
