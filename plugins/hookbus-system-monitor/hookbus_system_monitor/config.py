"""The settings of the hooks."""

from __future__ import annotations

from pydantic import Field

from hookbus import HookConfig

__all__ = ["MemoryProfilerConfig", "SystemMonitorConfig"]


class SystemMonitorConfig(HookConfig):
    """What of the machine is watched, and how often."""

    interval: float = Field(default=2.0, ge=0.01, description="Seconds between two samples.")
    frequency: int | None = Field(
        default=10, ge=1, description="Record, every this many iterations, what was sampled since the last record."
    )
    track_cpu: bool = Field(default=True, description="Whether the CPU is watched, its temperature included.")
    track_memory: bool = Field(default=True, description="Whether memory and swap are watched.")
    track_gpu: bool = Field(
        default=True, description="Whether use, temperature, power, clocks and energy of GPUs are watched."
    )
    track_gpu_memory: bool = Field(default=True, description="Whether the memory of GPUs is watched.")
    track_disk: bool = Field(default=True, description="Whether disk traffic and the disk of the run are watched.")
    track_network: bool = Field(default=True, description="Whether network traffic is watched.")
    show_plots: bool = Field(
        default=False, description="Whether the course of everything is saved as a picture when the run ends."
    )


class MemoryProfilerConfig(HookConfig):
    """Which memory is recorded, how often, and when there is too much of it."""

    interval: int = Field(default=50, gt=0, description="Record every this many iterations.")
    log_gpu: bool = Field(default=True, description="Whether the memory that torch holds on the device is recorded.")
    log_cpu: bool = Field(default=True, description="Whether the memory of process and system is recorded.")
    warn_threshold: float | None = Field(
        default=None, gt=0, description="Warn when the process, or torch on its device, uses more than so many GB."
    )
