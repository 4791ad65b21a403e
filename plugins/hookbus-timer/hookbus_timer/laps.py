"""A stopwatch for iterations, over a window of the last ones.

Usable without hookbus. Times are seconds of any clock that never goes back.
"""

from __future__ import annotations

from collections import deque

from hookbus_timer.rates import Lap, Rates, rates_of

__all__ = ["Laps"]


class Laps:
    """Times the last iterations, each from the end of the one before to its own end.

    Args:
        size: of how many iterations.
    """

    def __init__(self, size: int) -> None:
        self._laps: deque[Lap] = deque(maxlen=size)
        self._ended = 0.0  # the end of the last iteration, moved on by every pause since
        self._fetching_since: float | None = None
        self._data: float | None = None
        self._paused_at = 0.0

    def __bool__(self) -> bool:
        """Whether any iteration was timed."""
        return bool(self._laps)

    @property
    def rates(self) -> Rates:
        """The means over the window."""
        return rates_of(self._laps)

    def clear(self) -> None:
        """Forget every iteration."""
        self._laps.clear()

    def begin(self, now: float) -> None:
        """The first iteration of a row begins with fetching its data."""
        self._ended = self._fetching_since = now

    def fetched(self, now: float) -> None:
        """The data is there."""
        since = self._fetching_since
        self._data = None if since is None else now - since

    def end(self, now: float, samples: int, *, fetches_next: bool) -> None:
        """The iteration is done.

        Args:
            now: seconds.
            samples: how many it used.
            fetches_next: whether the next one's data is fetched from here on, without other work in between.
        """
        self._laps.append((now - self._ended, self._data, samples))
        self._ended, self._data = now, None
        self._fetching_since = now if fetches_next else None

    def fetch_from(self, now: float) -> None:
        """The next iteration's data is fetched from here on; what was done since the last `end` was other work."""
        self._fetching_since = now

    def pause(self, now: float) -> None:
        """What follows belongs to no iteration."""
        self._paused_at = now

    def go_on(self, now: float) -> float:
        """The pause is over; then data is fetched. Returns its seconds."""
        self._ended += now - max(self._paused_at, self._ended)
        self._fetching_since = now
        return now - self._paused_at
