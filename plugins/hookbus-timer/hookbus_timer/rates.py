"""What a row of timed iterations says: mean times, rates, and how much is left.

Usable without hookbus.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

__all__ = ["Lap", "Rates", "iterations_left", "rates_of"]

Lap = tuple[float, float | None, int]
"""One iteration: its seconds, those of them that were spent waiting for data (None: not known), its samples."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Means over some iterations; None for what cannot be told from them.

    Attributes:
        iteration: seconds per iteration.
        data: seconds per iteration that were spent waiting for data.
        iterations_per_second: iterations divided by their time.
        samples_per_second: samples divided by the time of their iterations.
    """

    iteration: float | None = None
    data: float | None = None
    iterations_per_second: float | None = None
    samples_per_second: float | None = None

    def named(self) -> dict[str, float]:
        """What is known, under the full names of records."""
        found = {
            "time/iter": self.iteration,
            "time/data": self.data,
            "throughput/iterations_per_second": self.iterations_per_second,
            "throughput/samples_per_second": self.samples_per_second,
        }
        return {name: value for name, value in found.items() if value is not None}

    def time_for(self, iterations: int | None) -> float | None:
        """Seconds that so many more iterations take at this pace; None where either is not known."""
        return None if iterations is None or self.iteration is None else iterations * self.iteration


def rates_of(laps: Collection[Lap]) -> Rates:
    """The means over these iterations.

    The data time is the mean over the iterations of which it is known. Rates are totals divided by totals, so slow
    iterations weigh as much as they lasted.
    """
    if not laps:
        return Rates()
    times, data, counts = zip(*laps, strict=True)
    waits = [each for each in data if each is not None]
    seconds, samples = math.fsum(times), sum(counts)
    return Rates(
        iteration=seconds / len(laps),
        data=math.fsum(waits) / len(waits) if waits else None,
        iterations_per_second=len(laps) / seconds if seconds else None,
        samples_per_second=samples / seconds if seconds and samples else None,
    )


def iterations_left(
    *,
    iterations_done: int,
    max_iterations: int | None,
    epochs_done: int,
    max_epochs: int | None,
    iterations_in_epoch: int,
    epoch_length: int | None,
) -> int | None:
    """How many iterations are left before the first limit is reached.

    Args:
        iterations_done: all of them, those before a resume included.
        max_iterations: the limit in iterations, None where there is none.
        epochs_done: epochs that are complete.
        max_epochs: the limit in epochs, None where there is none.
        iterations_in_epoch: how many of the iterations belong to an epoch that is not complete.
        epoch_length: iterations of one epoch, None where that is not known.

    Returns:
        At least 0; None where no limit can be told in iterations.
    """
    left = []
    if max_iterations is not None:
        left.append(max_iterations - iterations_done)
    if max_epochs is not None and epoch_length is not None:
        epochs_after = max_epochs - epochs_done - 1
        of_this_epoch = max(epoch_length - iterations_in_epoch, 0)
        left.append(of_this_epoch + epochs_after * epoch_length if epochs_after >= 0 else 0)
    return max(min(left), 0) if left else None
