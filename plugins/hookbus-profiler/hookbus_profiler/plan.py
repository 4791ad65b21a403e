"""Which iterations are traced?

Usable without hookbus. Iterations are counted from 0, from where the profiling begins.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Plan", "fitted"]


@dataclass(frozen=True, slots=True)
class Plan:
    """Cycles of iterations: some that are left alone, some to warm up, some that are recorded.

    Attributes:
        wait, warmup, active: how many of each there are in a cycle.
        repeat: how many cycles there are; 0 for no end.
        skip_first: iterations before the first cycle.
    """

    wait: int
    warmup: int
    active: int
    repeat: int = 1
    skip_first: int = 0

    @property
    def cycle(self) -> int:
        """Iterations of one cycle."""
        return self.wait + self.warmup + self.active

    @property
    def length(self) -> int:
        """Iterations up to the end of the last cycle; of the first one where there is no end."""
        return self.skip_first + self.cycle * max(self.repeat, 1)

    def cycle_of(self, index: int) -> int:
        """The number of the cycle, from 1, that an iteration belongs to; 0 before the first and after the last."""
        number = (index - self.skip_first) // self.cycle + 1
        return number if number > 0 and (not self.repeat or number <= self.repeat) else 0

    def begins_at(self, index: int) -> bool:
        """Whether the profiler is switched on for an iteration."""
        return self.cycle_of(index) > 0 and (index - self.skip_first) % self.cycle == self.wait

    def traces(self, index: int) -> bool:
        """Whether the profiler is on at an iteration, warming up or recording."""
        return self.cycle_of(index) > 0 and (index - self.skip_first) % self.cycle >= self.wait


def fitted(iterations: int) -> Plan:
    """A short cycle of at most 22 iterations that fits in so many.

    Args:
        iterations: at least 1.
    """
    active = min(10, (iterations + 1) // 2)
    warmup = min(2, iterations - active)
    return Plan(wait=min(10, iterations - active - warmup), warmup=warmup, active=active)
