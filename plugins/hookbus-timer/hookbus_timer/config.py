"""Configuration of the hooks."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat

from hookbus import HookConfig
from hookbus_timer.matrix_products import Precision


class IterTimerConfig(HookConfig):
    """Configuration of `IterTimerHook`."""

    effective_with = (("precision", "flops_per_batch"), ("peak_flops", "flops_per_batch"))
    frequency_error = "the timer has to receive every iteration. Set `interval` instead."

    interval: int = Field(
        default=50,
        gt=0,
        description="Log every N iterations; means are taken over the iterations since the last log, at most N.",
    )
    log_eta: bool = Field(default=True, description="Also log the remaining time.")
    window_size: int = Field(default=100, gt=0, description="Number of iterations over which throughput is averaged.")
    flops_per_batch: PositiveFloat | Literal["measure"] | None = Field(
        default=None,
        description="Floating-point operations of a micro-batch on one device, forward and backward; `measure` counts "
        "those of the second iteration.",
    )
    precision: Precision | None = Field(
        default=None,
        description="Data type of the matrix products, for the peak FLOP/s. Default: that of the Trainer.",
    )
    peak_flops: float | None = Field(
        default=None, gt=0, description="Peak FLOP/s of a device. Default: that of a known device and data type."
    )


class TimeTrackingConfig(HookConfig):
    """Configuration of `TimeTrackingHook`; the common key `frequency` sets how often it reports."""

    effective_with = (("log_path", "log_to_file"),)

    log_to_file: bool = Field(default=False, description="Also append each line to a file.")
    log_path: str = Field(
        default="time_tracking.log",
        min_length=1,
        description="Path of the file; a relative path is below the log directory of the run.",
    )
