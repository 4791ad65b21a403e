"""How long do epochs take, and how long will the rest take?

Usable without hookbus.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["EpochTimes"]


class EpochTimes:
    """Adds up the time of whole epochs, in stretches from the end of one epoch to the end of a later one.

    Time only runs between `start` and `stop`, so what lies between two processes never counts; a stretch that was
    interrupted goes on with `start`.

    Attributes:
        epochs, iterations, seconds: how many were timed in whole, and how long they took.
    """

    def __init__(self) -> None:
        self.epochs = self.iterations = 0
        self.seconds = 0.0
        self._begin: tuple[int, int] | None = None  # epochs and iterations that were done when the stretch began
        self._is_whole = True
        self._spent = 0.0
        self._since: float | None = None

    @property
    def mean(self) -> float | None:
        """Seconds per epoch, None before the first one."""
        return self.seconds / self.epochs if self.epochs else None

    def start(self, now: float, epochs: int, iterations: int, *, at_border: bool) -> None:
        """Time runs from here.

        Args:
            now: seconds.
            epochs, iterations: how many are done.
            at_border: whether an epoch begins here; one that began earlier, untimed, is not counted.
        """
        if self._begin is None:
            self._begin, self._is_whole = (epochs, iterations), at_border
        self._since = now

    def skip(self, now: float) -> None:
        """What passed since `start` does not count."""
        self._since = now

    def stop(self, now: float) -> None:
        """Time stands still from here. May be called twice."""
        self._spent, self._since = self._elapsed(now), None

    def end_epoch(self, now: float, epochs: int, iterations: int) -> float | None:
        """An epoch is complete: the stretch ends, and the next one begins.

        Args:
            now: seconds.
            epochs, iterations: how many are done.

        Returns:
            Seconds per epoch of the stretch; None where it holds no epoch that was timed in whole.
        """
        (epochs_before, iterations_before), elapsed = self._begin or (epochs, iterations), self._elapsed(now)
        timed = epochs - epochs_before if self._is_whole else 0
        self._begin, self._is_whole, self._spent, self._since = (epochs, iterations), True, 0.0, now
        if not timed:
            return None
        self.epochs += timed
        self.iterations += iterations - iterations_before
        self.seconds += elapsed
        return elapsed / timed

    def remaining(self, *, epochs: int | None, iterations: int | None) -> float | None:
        """Seconds until the first limit is reached, at the mean pace so far.

        Args:
            epochs, iterations: how many are left of each; None where there is no limit.

        Returns:
            At least 0; None where there is no limit, or nothing was timed yet.
        """
        left = []
        if epochs is not None and self.epochs:
            left.append(max(epochs, 0) * self.seconds / self.epochs)
        if iterations is not None and self.iterations:
            left.append(max(iterations, 0) * self.seconds / self.iterations)
        return min(left, default=None)

    def state_dict(self, now: float) -> dict[str, Any]:
        """Sums, and the stretch in progress up to now, as plain values."""
        return {
            "epochs": self.epochs,
            "iterations": self.iterations,
            "seconds": self.seconds,
            "begin": None if self._begin is None else list(self._begin),
            "is_whole": self._is_whole,
            "spent": self._elapsed(now),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave; time stands still until `start`."""
        self.epochs, self.iterations, self.seconds = state["epochs"], state["iterations"], state["seconds"]
        self._begin = None if state["begin"] is None else (state["begin"][0], state["begin"][1])
        self._is_whole, self._spent, self._since = state["is_whole"], state["spent"], None

    def _elapsed(self, now: float) -> float:
        return self._spent + (0.0 if self._since is None else now - self._since)
