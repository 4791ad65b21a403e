"""A profiler for hookbus: traces, costly operators, and a report that says what holds a training back."""

from hookbus_profiler.config import ProfilerConfig, ScheduleConfig
from hookbus_profiler.hook import ProfilerHook

__all__ = ["ProfilerConfig", "ProfilerHook", "ScheduleConfig"]
