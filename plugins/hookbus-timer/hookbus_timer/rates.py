"""Mean times and rates of timed iterations, and the number of remaining iterations.

Usable without hookbus.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

__all__ = ["Rates", "TimedIteration", "compute_rates", "remaining_iterations"]

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


def remaining_iterations(
    *,
    iterations_done: int,
    max_iterations: int | None,
    epochs_done: int,
    max_epochs: int | None,
    iterations_in_epoch: int,
    epoch_length: int | None,
) -> int | None:
    """Compute the number of iterations until the first limit is reached.

    Args:
        iterations_done: Number of completed iterations, including those before a resume.
        max_iterations: Limit in iterations; None without a limit.
        epochs_done: Number of completed epochs.
        max_epochs: Limit in epochs; None without a limit.
        iterations_in_epoch: Number of completed iterations of the current epoch.
        epoch_length: Number of iterations per epoch; None if unknown.

    Returns:
        Number of remaining iterations, at least 0; None if no limit is known in iterations.
    """
    remaining = []
    if max_iterations is not None:
        remaining.append(max_iterations - iterations_done)
    if max_epochs is not None and epoch_length is not None:
        epochs_after = max_epochs - epochs_done - 1
        # At least 0: the current epoch can be longer than `epoch_length`, which may be that of an earlier epoch.
        in_this_epoch = max(epoch_length - iterations_in_epoch, 0)
        remaining.append(in_this_epoch + epochs_after * epoch_length if epochs_after >= 0 else 0)
    return max(min(remaining), 0) if remaining else None
