"""Timer of iterations, and mean times and rates over a window of the last iterations.

Usable without hookbus. Times are in seconds of any monotonic clock.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection
from itertools import islice

TimedIteration = tuple[float, float | None, int]
"""One iteration: duration in seconds, data time in seconds (None if unknown), and number of samples."""

ITERATION_TIME, DATA_TIME = "time/iter", "time/data"
"""Names of the seconds per iteration, and of those spent waiting for data."""


def compute_rates(iterations: Collection[TimedIteration]) -> dict[str, float]:
    """Compute the means over iterations, by full metric name; without unknown values.

    The data time is the mean over the iterations with a known data time. Rates are quotients of totals, so each
    iteration is weighted by its duration.
    """
    if not iterations:
        return {}
    times, data, counts = zip(*iterations, strict=True)
    waits = [wait for wait in data if wait is not None]
    # `fsum`, so that the mean does not depend on the order of the iterations.
    seconds, samples = math.fsum(times), sum(counts)
    rates = {ITERATION_TIME: seconds / len(iterations)}
    if waits:
        rates[DATA_TIME] = math.fsum(waits) / len(waits)
    if seconds:
        rates["throughput/iterations_per_second"] = len(iterations) / seconds
    if seconds and samples:
        rates["throughput/samples_per_second"] = samples / seconds
    return rates


class WindowedTimer:
    """Timer of the last iterations, from the end of the previous iteration to the end of each.

    Args:
        size: Number of iterations in the window.
    """

    def __init__(self, size: int) -> None:
        self._iterations: deque[TimedIteration] = deque(maxlen=size)
        self._last_end = 0.0  # end of the last iteration, plus the pauses since then
        self._fetch_started_at: float | None = None
        self._data_seconds: float | None = None
        self._paused_at = 0.0
        self._interval = 0  # number of iterations since `end_interval`

    def __bool__(self) -> bool:
        """Return whether the interval contains an iteration."""
        return self._interval > 0

    @property
    def rates(self) -> dict[str, float]:
        """Means over the window, see `compute_rates`."""
        return compute_rates(self._iterations)

    @property
    def interval_rates(self) -> dict[str, float]:
        """Means over the interval, that is, the iterations in the window since the last call of `end_interval`."""
        first = max(len(self._iterations) - self._interval, 0)
        return compute_rates(list(islice(self._iterations, first, None)))

    def end_interval(self) -> None:
        """Start a new interval; the window is unchanged."""
        self._interval = 0

    def clear(self) -> None:
        """Remove all iterations from the window."""
        self._iterations.clear()
        self._interval = 0

    def start(self, now: float) -> None:
        """Start timing: the first iteration starts with fetching its data."""
        self._last_end = self._fetch_started_at = now

    def end_fetch(self, now: float) -> None:
        """End fetching data for the current iteration."""
        since = self._fetch_started_at
        self._data_seconds = None if since is None else now - since

    def end_iteration(self, now: float, samples: int, *, fetches_next: bool) -> None:
        """End the current iteration.

        Args:
            fetches_next: Whether the data of the next iteration is fetched from now on, without other work in between.
        """
        self._iterations.append((now - self._last_end, self._data_seconds, samples))
        self._interval += 1
        self._last_end, self._data_seconds = now, None
        self._fetch_started_at = now if fetches_next else None

    def start_fetch(self, now: float) -> None:
        """Start fetching the data of the next iteration; the time since `end_iteration` is not data time."""
        self._fetch_started_at = now

    def pause(self, now: float) -> None:
        """Exclude the time until `resume`."""
        self._paused_at = now

    def resume(self, now: float) -> float:
        """End the pause, start fetching data, and return the duration of the pause in seconds."""
        # An iteration that ended during the pause (`end_iteration` after `pause`) contains the first part of the pause.
        self._last_end += now - max(self._paused_at, self._last_end)
        self._fetch_started_at = now
        return now - self._paused_at
