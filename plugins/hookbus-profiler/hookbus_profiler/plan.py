"""Schedule of the traced iterations.

Iterations are counted from 0, starting with the first profiled one. Usable without hookbus.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Plan", "fit_schedule"]


@dataclass(frozen=True, slots=True)
class Plan:
    """Cycles of iterations, as in `torch.profiler.schedule`.

    Attributes:
        wait: Iterations per cycle without profiling.
        warmup: Warm-up iterations per cycle, traced and discarded.
        active: Traced iterations per cycle.
        repeat: Number of cycles; 0 for no limit.
        skip_first: Iterations before the first cycle.
    """

    wait: int
    warmup: int
    active: int
    repeat: int = 1
    skip_first: int = 0

    @property
    def cycle_length(self) -> int:
        """Number of iterations per cycle."""
        return self.wait + self.warmup + self.active

    @property
    def length(self) -> int:
        """Number of iterations up to the end of the last cycle, or of the first one if there is no limit."""
        return self.skip_first + self.cycle_length * max(self.repeat, 1)

    def __str__(self) -> str:
        times = f" x repeat {self.repeat}" if self.repeat > 1 else ""
        cycle = f"(wait {self.wait} + warmup {self.warmup} + active {self.active})"
        return f"skip_first {self.skip_first} + {cycle}{times} = {self.length} iterations"

    def get_cycle(self, index: int) -> int:
        """Return the number of an iteration's cycle, counted from 1; 0 outside of the cycles."""
        number = (index - self.skip_first) // self.cycle_length + 1
        return number if number > 0 and (not self.repeat or number <= self.repeat) else 0

    def is_start(self, index: int) -> bool:
        """Return whether the profiler is started for an iteration."""
        return self.get_cycle(index) > 0 and (index - self.skip_first) % self.cycle_length == self.wait

    def is_traced(self, index: int) -> bool:
        """Return whether the profiler is warming up or recording in an iteration."""
        return self.get_cycle(index) > 0 and (index - self.skip_first) % self.cycle_length >= self.wait


def fit_schedule(iterations: int) -> Plan:
    """Return a plan of one cycle of at most 22 iterations that fits in a number of iterations.

    Args:
        iterations: Number of available iterations, at least 1.
    """
    # Recording takes precedence over warm-up, and warm-up over waiting.
    active = min(10, (iterations + 1) // 2)
    warmup = min(2, iterations - active)
    return Plan(wait=min(10, iterations - active - warmup), warmup=warmup, active=active)
