"""Configuration of the hook, and the schedule of the traced iterations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ImportString, model_validator

from hookbus import HookConfig, resolve_import


class ScheduleConfig(BaseModel):
    """Cycles of the profiler, in iterations, as in `torch.profiler.schedule`.

    Iterations are counted from 0, starting with the first profiled one.
    """

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
    """Return a schedule of one cycle of at most 22 iterations that fits in a number of iterations."""
    # Recording takes precedence over warm-up, and warm-up over waiting.
    active = min(10, (iterations + 1) // 2)
    warmup = min(2, iterations - active)
    return ScheduleConfig(wait=min(10, iterations - active - warmup), warmup=warmup, active=active)


class ProfilerConfig(HookConfig):
    """Length of the profiling, traced iterations and exported files."""

    frequency_error = "the profiler measures every iteration. Set `schedule` to select the traced iterations."

    by_epoch: bool = Field(default=False, description="Count `profile_iters` in epochs instead of iterations.")
    profile_iters: int = Field(default=100, ge=1, description="Number of profiled iterations or epochs.")
    schedule: ScheduleConfig | None = Field(
        default=None,
        description="Schedule of the traced iterations. Default: one short cycle that fits in `profile_iters`.",
    )
    on_trace_ready: Annotated[ImportString[Callable[[Any], Any]] | None, BeforeValidator(resolve_import)] = Field(
        default=None,
        description="Function called with the `torch.profiler.profile` after each cycle, or its import string.",
    )
    record_shapes: bool = Field(default=True, description="Trace the input shapes of operators.")
    profile_memory: bool = Field(default=True, description="Trace memory allocations.")
    with_stack: bool = Field(default=False, description="Trace the source location of operators.")
    with_flops: bool = Field(default=True, description="Count the floating-point operations of one iteration.")
    export_chrome_trace: bool = Field(default=True, description="Export Chrome traces (for Perfetto).")
    export_tensorboard: bool = Field(
        default=True,
        description="Name the Chrome traces as expected by TensorBoard (.pt.trace.json.gz); false: .json.gz. Requires "
        "`export_chrome_trace`.",
    )
    max_megabytes: float = Field(
        default=500, gt=0, description="Maximum total size of the files of a run in MB, over all processes."
    )

    @model_validator(mode="after")
    def _check_settings(self) -> ProfilerConfig:
        plan = self.plan
        # With by_epoch the number of iterations is unknown here.
        if not self.by_epoch and plan.length > self.profile_iters:
            raise ValueError(
                f"schedule: {plan}, but profile_iters is {self.profile_iters}. Set `profile_iters: {plan.length}` or "
                "shorten the schedule."
            )
        if self.export_tensorboard and not self.export_chrome_trace:
            raise ValueError(
                "export_chrome_trace: no effect while export_tensorboard is true, got False, because both are the same "
                "file. Set `export_tensorboard: false` as well to write no traces."
            )
        return self

    @property
    def plan(self) -> ScheduleConfig:
        """Schedule of the traced iterations."""
        return self.schedule or fit_schedule(22 if self.by_epoch else self.profile_iters)
