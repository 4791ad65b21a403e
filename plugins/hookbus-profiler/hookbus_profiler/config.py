"""Configuration of the hook."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ImportString, model_validator

from hookbus import HookConfig, resolve_import
from hookbus_profiler.plan import ScheduleConfig, fit_schedule


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
    def _check_schedule(self) -> ProfilerConfig:
        plan = self.plan
        # With by_epoch the number of iterations is unknown here.
        if not self.by_epoch and plan.length > self.profile_iters:
            raise ValueError(
                f"schedule: {plan}, but profile_iters is {self.profile_iters}. Set `profile_iters: {plan.length}` or "
                "shorten the schedule."
            )
        return self

    @model_validator(mode="after")
    def _check_exports(self) -> ProfilerConfig:
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
