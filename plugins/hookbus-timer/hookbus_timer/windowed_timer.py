"""Timer of iterations, and mean times and rates over a window of the last iterations.

Usable without hookbus. Times are in seconds of any monotonic clock.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from itertools import islice

TimedIteration = tuple[float, float | None, int]
"""One iteration: duration in seconds, data time in seconds (None if unknown), and number of samples."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Means over iterations; None for unknown values.

    Attributes:
        iteration: Seconds per iteration.
        data: Seconds per iteration spent waiting for data.
        iterations_per_second: Number of iterations divided by their total duration.
        samples_per_second: Number of samples divided by the total duration of the iterations.
    """

    iteration: float | None = None
    data: float | None = None
    iterations_per_second: float | None = None
    samples_per_second: float | None = None

    def to_dict(self) -> dict[str, float]:
        """Return the known values by full metric name."""
        values = {
            "time/iter": self.iteration,
            "time/data": self.data,
            "throughput/iterations_per_second": self.iterations_per_second,
            "throughput/samples_per_second": self.samples_per_second,
        }
        return {name: value for name, value in values.items() if value is not None}

    def estimate_seconds(self, iterations: int | None) -> float | None:
        """Estimate the duration of a number of iterations, in seconds; None if either is unknown."""
        return None if iterations is None or self.iteration is None else iterations * self.iteration


def compute_rates(iterations: Collection[TimedIteration]) -> Rates:
    """Compute the means over iterations.

    The data time is the mean over the iterations with a known data time. Rates are quotients of totals, so each
    iteration is weighted by its duration.
    """
    if not iterations:
        return Rates()
    times, data, counts = zip(*iterations, strict=True)
    waits = [wait for wait in data if wait is not None]
    # `fsum`, so that the mean does not depend on the order of the iterations.
    seconds, samples = math.fsum(times), sum(counts)
    return Rates(
        iteration=seconds / len(iterations),
        data=math.fsum(waits) / len(waits) if waits else None,
        iterations_per_second=len(iterations) / seconds if seconds else None,
        samples_per_second=samples / seconds if seconds and samples else None,
    )


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
    def rates(self) -> Rates:
        """Means over the window."""
        return compute_rates(self._iterations)

    @property
    def interval_rates(self) -> Rates:
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
            now: Current time, in seconds.
            samples: Number of samples of the iteration.
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
