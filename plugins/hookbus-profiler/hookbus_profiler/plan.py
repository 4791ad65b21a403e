"""Schedule of the traced iterations.

Iterations are counted from 0, starting with the first profiled one. Usable without hookbus.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class ScheduleConfig(BaseModel):
    """Cycles of the profiler, in iterations, as in `torch.profiler.schedule`."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    wait: int = Field(default=10, ge=0, description="Iterations per cycle without profiling.")
    warmup: int = Field(default=2, ge=0, description="Warm-up iterations per cycle, traced and discarded.")
    active: int = Field(default=10, ge=1, description="Traced iterations per cycle.")
    repeat: int = Field(default=1, ge=0, description="Number of cycles; 0 for no limit.")
    skip_first: int = Field(default=0, ge=0, description="Iterations before the first cycle.")

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


def fit_schedule(iterations: int) -> ScheduleConfig:
    """Return a schedule of one cycle of at most 22 iterations that fits in a number of iterations.

    Args:
        iterations: Number of available iterations, at least 1.
    """
    # Recording takes precedence over warm-up, and warm-up over waiting.
    active = min(10, (iterations + 1) // 2)
    warmup = min(2, iterations - active)
    return ScheduleConfig(wait=min(10, iterations - active - warmup), warmup=warmup, active=active)
