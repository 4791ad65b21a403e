"""Throughput over a rolling window of iterations.

Usable without hookbus.
"""

from __future__ import annotations

import math
from collections import deque


class ThroughputWindow:
    """Iterations of a rolling window, with their training time.

    Rates are quotients of totals, so each iteration is weighted by its duration.

    Args:
        size: Number of iterations in the window.
    """

    def __init__(self, size: int) -> None:
        self._iterations: deque[tuple[float, int, int]] = deque(maxlen=size)

    def clear(self) -> None:
        """Remove all iterations."""
        self._iterations.clear()

    def add(self, seconds: float, samples: int, tokens: int) -> None:
        """Add an iteration.

        Args:
            seconds: Duration in seconds.
            samples: Number of samples of all ranks; 0 if it is unknown.
            tokens: Number of tokens of all ranks; 0 if they are not counted.
        """
        self._iterations.append((seconds, samples, tokens))

    def compute_rates(
        self, *, world_size: int = 1, flops_per_batch: float | None = None, peak_flops: float | None = None
    ) -> dict[str, float]:
        """Compute the rates of the window by full metric name, without unknown ones.

        Args:
            world_size: Number of ranks. Rates per device are included if there are several.
            flops_per_batch: Floating-point operations of a micro-batch on one device, None if they are unknown.
            peak_flops: Peak FLOP/s of a device, None if it is unknown.

        Returns:
            `throughput/<unit>_per_second`, summed over ranks; `throughput/device/<unit>_per_second`, their mean; and
            `throughput/mfu`, the model FLOP/s as a fraction of the peak FLOP/s.
        """
        seconds = math.fsum(duration for duration, _, _ in self._iterations)
        if not seconds:
            return {}
        count = len(self._iterations)
        totals: dict[str, float] = {
            "iterations": count,
            "samples": sum(samples for _, samples, _ in self._iterations),
            "tokens": sum(tokens for _, _, tokens in self._iterations),
            "flops": count * world_size * (flops_per_batch or 0.0),
        }
        known = {unit: total / seconds for unit, total in totals.items() if total}
        rates = {f"throughput/{unit}_per_second": rate for unit, rate in known.items()}
        if world_size > 1:  # every rank executes each iteration
            per_device = {unit: rate / world_size for unit, rate in known.items() if unit != "iterations"}
            rates |= {f"throughput/device/{unit}_per_second": rate for unit, rate in per_device.items()}
        if peak_flops and "flops" in known:
            rates["throughput/mfu"] = known["flops"] / world_size / peak_flops
        return rates
