"""The settings of the hook."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ImportString, model_validator

from hookbus import HookConfig, imported
from hookbus_profiler.plan import Plan, fitted

__all__ = ["ProfilerConfig", "ScheduleConfig"]


class ScheduleConfig(BaseModel):
    """The cycles of the profiler, in iterations."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    wait: int = Field(default=10, ge=0, description="Iterations of a cycle that are left alone.")
    warmup: int = Field(default=2, ge=0, description="Iterations that are recorded and thrown away.")
    active: int = Field(default=10, ge=1, description="Iterations that are recorded.")
    repeat: int = Field(default=1, ge=0, description="Cycles; 0 for as many as the profiling lasts.")
    skip_first: int = Field(default=0, ge=0, description="Iterations before the first cycle.")

    @property
    def plan(self) -> Plan:
        """The same, as a plan."""
        return Plan(self.wait, self.warmup, self.active, self.repeat, self.skip_first)


class ProfilerConfig(HookConfig):
    """How long is profiled, what of it is traced, and what is written."""

    no_frequency = "the profiler has to see every iteration. Say schedule for what is traced."

    by_epoch: bool = Field(default=False, description="Whether profile_iters counts epochs instead of iterations.")
    profile_iters: int = Field(default=100, ge=1, description="How many iterations, or epochs, are profiled.")
    schedule: ScheduleConfig | None = Field(
        default=None, description="Which of them are traced. Default one short cycle that fits."
    )
    on_trace_ready: Annotated[ImportString[Callable[[Any], Any]] | None, BeforeValidator(imported)] = Field(
        default=None, description="Called with the torch profiler after each cycle; a path module.function in a file."
    )
    record_shapes: bool = Field(default=True, description="Whether the shapes of the inputs are traced.")
    profile_memory: bool = Field(default=True, description="Whether allocations are traced.")
    with_stack: bool = Field(default=False, description="Whether the lines of the source are traced.")
    with_flops: bool = Field(default=True, description="Whether the arithmetic of one iteration is counted.")
    export_chrome_trace: bool = Field(default=True, description="Whether traces are written, for Perfetto.")
    export_tensorboard: bool = Field(
        default=True, description="Whether the files of the traces have the name that TensorBoard looks for."
    )
    max_megabytes: float = Field(
        default=500, gt=0, description="What all files of a run may take together, those of every process."
    )

    @model_validator(mode="after")
    def _fits(self) -> ProfilerConfig:
        plan = self.plan
        if not self.by_epoch and plan.length > self.profile_iters:
            times = f" x repeat {plan.repeat}" if plan.repeat > 1 else ""
            raise ValueError(
                f"schedule: skip_first {plan.skip_first} + (wait {plan.wait} + warmup {plan.warmup} + active "
                f"{plan.active}){times} = {plan.length} iterations, and profile_iters is {self.profile_iters}. Say "
                f"profile_iters: {plan.length}, or shorten the schedule."
            )
        return self

    @property
    def plan(self) -> Plan:
        """Which iterations are traced."""
        if self.schedule is not None:
            return self.schedule.plan
        return fitted(22 if self.by_epoch else self.profile_iters)
