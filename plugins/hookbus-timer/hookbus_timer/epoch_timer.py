"""Durations of epochs, and an estimate of the remaining time.

Usable without hookbus.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class EpochTimer:
    """Timer of complete epochs, in intervals from the end of one epoch to the end of a later one.

    Only the time between `start` and `stop` is counted, so the time between two processes is excluded; `start`
    continues an interrupted interval. Times are in seconds; numbers of epochs and iterations are of completed ones.

    Attributes:
        epochs: Number of completely timed epochs.
        iterations: Number of iterations in these epochs.
        seconds: Total duration of these epochs, in seconds.
    """

    def __init__(self) -> None:
        self.epochs = self.iterations = 0
        self.seconds = 0.0
        # Numbers of completed epochs and iterations at the start of the interval.
        self._interval_start: tuple[int, int] | None = None
        self._starts_at_boundary = True
        self._accumulated = 0.0
        self._started_at: float | None = None

    @property
    def mean(self) -> float | None:
        """Mean duration of an epoch, in seconds; None before the end of the first epoch."""
        return self.seconds / self.epochs if self.epochs else None

    def start(self, now: float, epochs: int, iterations: int, *, at_boundary: bool) -> None:
        """Start or continue timing. If called twice, the time in between is excluded.

        Args:
            at_boundary: Whether an epoch starts now; an epoch whose start was not timed is excluded.
        """
        # After `load_state_dict` the interval began in the process that saved the state, and only its clock restarts.
        if self._interval_start is None:
            self._interval_start, self._starts_at_boundary = (epochs, iterations), at_boundary
        self._started_at = now

    def stop(self, now: float) -> None:
        """Stop timing. May be called twice."""
        self._accumulated, self._started_at = self._get_elapsed(now), None

    def end_epoch(self, now: float, epochs: int, iterations: int) -> float | None:
        """End the interval at the end of an epoch, and start the next interval.

        Returns:
            Mean duration of the epochs of the interval, in seconds; None if no epoch was timed completely.
        """
        epochs_before, iterations_before = self._interval_start or (epochs, iterations)
        elapsed = self._get_elapsed(now)
        # If the start of the first epoch was not timed, its share of the elapsed time is unknown.
        timed = epochs - epochs_before if self._starts_at_boundary else 0
        self._interval_start, self._starts_at_boundary = (epochs, iterations), True
        self._accumulated, self._started_at = 0.0, now
        if not timed:
            return None
        self.epochs += timed
        self.iterations += iterations - iterations_before
        self.seconds += elapsed
        return elapsed / timed

    def estimate_remaining(self, *, epochs: int | None, iterations: int | None) -> float | None:
        """Estimate the time until the first limit is reached, from the mean durations.

        Args:
            epochs: Number of remaining epochs; None without a limit.
            iterations: Number of remaining iterations; None without a limit.

        Returns:
            Remaining time in seconds, at least 0; None without a limit, or if no epoch was timed yet.
        """
        estimates = []
        if epochs is not None and self.epochs:
            estimates.append(max(epochs, 0) * self.seconds / self.epochs)
        if iterations is not None and self.iterations:
            estimates.append(max(iterations, 0) * self.seconds / self.iterations)
        return min(estimates, default=None)

    def state_dict(self, now: float) -> dict[str, Any]:
        """Return the totals and the current interval up to `now`, as built-in Python types."""
        return {
            "epochs": self.epochs,
            "iterations": self.iterations,
            "seconds": self.seconds,
            "begin": None if self._interval_start is None else list(self._interval_start),
            "is_whole": self._starts_at_boundary,
            "spent": self._get_elapsed(now),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state returned by `state_dict()`; `start` continues timing."""
        self.epochs, self.iterations, self.seconds = state["epochs"], state["iterations"], state["seconds"]
        self._interval_start = None if state["begin"] is None else (state["begin"][0], state["begin"][1])
        self._starts_at_boundary, self._accumulated, self._started_at = state["is_whole"], state["spent"], None

    def _get_elapsed(self, now: float) -> float:
        """Return the duration of the current interval up to `now`."""
        return self._accumulated + (0.0 if self._started_at is None else now - self._started_at)
