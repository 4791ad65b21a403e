"""Profiler for hookbus: traces, the most expensive operators, and a report of the training bottleneck."""

from hookbus_profiler.config import ProfilerConfig, ScheduleConfig
from hookbus_profiler.hook import ProfilerHook

__all__ = ["ProfilerConfig", "ProfilerHook", "ScheduleConfig"]
