"""Timer of iterations, over a window of the last iterations.

Usable without hookbus. Times are in seconds of any monotonic clock.
"""

from __future__ import annotations

from collections import deque

from hookbus_timer.rates import Lap, Rates, rates_of

__all__ = ["Laps"]


class Laps:
    """Timer of the last iterations, from the end of the previous iteration to the end of each.

    Args:
        size: Number of iterations in the window.
    """

    def __init__(self, size: int) -> None:
        self._laps: deque[Lap] = deque(maxlen=size)
        self._ended = 0.0  # end of the last iteration, plus the pauses since then
        self._fetching_since: float | None = None
        self._data: float | None = None
        self._paused_at = 0.0

    def __bool__(self) -> bool:
        """Whether the window contains an iteration."""
        return bool(self._laps)

    @property
    def rates(self) -> Rates:
        """Means over the window."""
        return rates_of(self._laps)

    def clear(self) -> None:
        """Remove all iterations from the window."""
        self._laps.clear()

    def begin(self, now: float) -> None:
        """Start timing: the first iteration starts with fetching its data."""
        self._ended = self._fetching_since = now

    def fetched(self, now: float) -> None:
        """End fetching data for the current iteration."""
        since = self._fetching_since
        self._data = None if since is None else now - since

    def end(self, now: float, samples: int, *, fetches_next: bool) -> None:
        """End the current iteration.

        Args:
            now: Current time, in seconds.
            samples: Number of samples of the iteration.
            fetches_next: Whether the data of the next iteration is fetched from now on, without other work in between.
        """
        self._laps.append((now - self._ended, self._data, samples))
        self._ended, self._data = now, None
        self._fetching_since = now if fetches_next else None

    def fetch_from(self, now: float) -> None:
        """Start fetching the data of the next iteration; the time since the last `end` is not data time."""
        self._fetching_since = now

    def pause(self, now: float) -> None:
        """Exclude the time until `go_on`."""
        self._paused_at = now

    def go_on(self, now: float) -> float:
        """End the pause, start fetching data, and return the duration of the pause in seconds."""
        # An iteration that ended during the pause (`end` after `pause`) contains the first part of the pause already.
        self._ended += now - max(self._paused_at, self._ended)
        self._fetching_since = now
        return now - self._paused_at
