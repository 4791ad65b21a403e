"""Throughput of a run over a sliding time window. Independent of the event bus."""

from __future__ import annotations

from collections import deque


class ThroughputMeter:
    """Throughput over a sliding time window, pauses excluded. Times are in seconds of a monotonic clock.

    Args:
        span: Length of the window in seconds.
    """

    def __init__(self, span: float = 30.0) -> None:
        self._span = span
        self._pauses = 0.0
        self._paused_since: float | None = None
        self._points: deque[tuple[float, int]] = deque()

    def pause(self, now: float) -> None:
        """Exclude the time from now until `resume` from the measurement."""
        self._paused_since = now

    def resume(self, now: float) -> None:
        """End the pause; a no-op if there is none."""
        if self._paused_since is not None:
            self._pauses += now - self._paused_since
        self._paused_since = None

    def update(self, done: int, now: float) -> None:
        """Add a measurement."""
        active = (now if self._paused_since is None else self._paused_since) - self._pauses
        self._points.append((active, done))
        # Two points always remain: measurements further apart than the window would otherwise yield no rate.
        while len(self._points) > 2 and self._points[1][0] <= active - self._span:
            self._points.popleft()

    @property
    def per_second(self) -> float | None:
        """Iterations per second; None until an iteration is completed between two measurements."""
        if not self._points:
            return None
        (begin, first), (end, last) = self._points[0], self._points[-1]
        return (last - first) / (end - begin) if end > begin and last > first else None


def format_throughput(per_second: float) -> str:
    """Format a throughput in it/s, or in s/it if an iteration takes longer than a second."""
    value, unit = (per_second, "it/s") if per_second >= 1 else (1 / per_second, "s/it")
    return f"{value:.1f} {unit}" if value < 100 else f"{value:.0f} {unit}"
