"""Configuration of the hooks."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from hookbus import HookConfig


class SystemMonitorConfig(HookConfig):
    """Configuration of `SystemMonitorHook`."""

    interval: float = Field(default=2.0, ge=0.01, description="Seconds between two samples.")
    frequency: int | None = Field(
        default=10,
        ge=1,
        description="Iterations between two records, each with the means of the samples since the last record.",
    )
    track_cpu: bool = Field(default=True, description="Sample CPU utilization and temperature.")
    track_memory: bool = Field(default=True, description="Sample the memory of system and process, and swap.")
    track_gpu: bool = Field(
        default=True, description="Sample utilization, temperature, power, clocks and energy of GPUs."
    )
    track_gpu_memory: bool = Field(default=True, description="Sample the memory of GPUs.")
    track_disk: bool = Field(default=True, description="Sample disk traffic and the usage of the disk of the run.")
    track_network: bool = Field(default=True, description="Sample network traffic.")
    show_plots: bool = Field(default=False, description="Save plots of all samples over time when the run ends.")

    @classmethod
    def tracked_settings(cls) -> list[str]:
        """Return the names of the settings `track_*`."""
        return [name for name in cls.model_fields if name.startswith("track_")]

    @model_validator(mode="after")
    def _check_sources(self) -> Self:
        if not any(getattr(self, name) for name in self.tracked_settings()):
            raise ValueError("track_cpu: nothing is sampled, so the hook has no effect. Set one of track_* to true.")
        return self


class MemoryProfilerConfig(HookConfig):
    """Configuration of `MemoryProfilerHook`."""

    effective_with = (("warn_threshold", "log_gpu", "log_cpu"),)

    interval: int = Field(default=50, gt=0, description="Number of iterations between two records.")
    log_gpu: bool = Field(default=True, description="Log the memory of torch on the device.")
    log_cpu: bool = Field(default=True, description="Log the memory of process and system.")
    warn_threshold: float | None = Field(
        default=None,
        gt=0,
        description="Memory in GB of the process, or of torch on its device, above which a warning is logged.",
    )
