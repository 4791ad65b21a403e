"""System, GPU and memory monitors for hookbus, with leak detection."""

from hookbus_system_monitor.config import MemoryProfilerConfig, SystemMonitorConfig
from hookbus_system_monitor.devices import AcceleratorProvider, Provider
from hookbus_system_monitor.memory_profiler import MemoryProfilerHook
from hookbus_system_monitor.monitor import SystemMonitorHook
from hookbus_system_monitor.nvml import NvmlProvider

__all__ = [
    "AcceleratorProvider",
    "MemoryProfilerConfig",
    "MemoryProfilerHook",
    "NvmlProvider",
    "Provider",
    "SystemMonitorConfig",
    "SystemMonitorHook",
]
