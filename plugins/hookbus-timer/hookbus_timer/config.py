"""The settings of the hooks."""

from __future__ import annotations

from pydantic import Field

from hookbus import HookConfig

__all__ = ["IterTimerConfig", "TimeTrackingConfig"]


class IterTimerConfig(HookConfig):
    """How often iterations are reported, and over how many of them."""

    no_frequency = "the timer has to see every iteration. Say interval for how often it records."

    interval: int = Field(
        default=50, gt=0, description="Record every this many iterations; means are taken over the last so many."
    )
    log_eta: bool = Field(default=True, description="Whether the time left is recorded as well.")


class TimeTrackingConfig(HookConfig):
    """Where epoch times are written besides the log; the common key `frequency` says how often."""

    log_to_file: bool = Field(default=False, description="Whether each line is appended to a file as well.")
    log_path: str = Field(
        default="time_tracking.log", min_length=1, description="That file; a relative path is below the logs_dir."
    )
