"""Mean times and rates of timed iterations.

Usable without hookbus.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

__all__ = ["Rates", "TimedIteration", "compute_rates"]

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
