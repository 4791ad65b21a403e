"""Configuration of the hooks."""

from __future__ import annotations

from pydantic import Field

from hookbus import HookConfig


class IterTimerConfig(HookConfig):
    """Configuration of `IterTimerHook`."""

    frequency_error = "the timer has to receive every iteration. Set `interval` instead."

    interval: int = Field(
        default=50,
        gt=0,
        description="Log every N iterations; means are taken over the iterations since the last log, at most N.",
    )
    log_eta: bool = Field(default=True, description="Also log the remaining time.")


class TimeTrackingConfig(HookConfig):
    """Configuration of `TimeTrackingHook`; the common key `frequency` sets how often it reports."""

    effective_with = (("log_path", "log_to_file"),)

    log_to_file: bool = Field(default=False, description="Also append each line to a file.")
    log_path: str = Field(
        default="time_tracking.log",
        min_length=1,
        description="Path of the file; a relative path is below the log directory of the run.",
    )
