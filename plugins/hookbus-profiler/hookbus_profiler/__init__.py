"""Profiler for hookbus: traces, the most expensive operators, and a report of the training bottleneck."""

from hookbus_profiler.config import ProfilerConfig
from hookbus_profiler.hook import ProfilerHook
from hookbus_profiler.plan import ScheduleConfig

__all__ = ["ProfilerConfig", "ProfilerHook", "ScheduleConfig"]
