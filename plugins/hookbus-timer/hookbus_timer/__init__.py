"""Timers for hookbus: data and iteration time, throughput, remaining time, epoch times and finish time."""

from hookbus_timer.config import IterTimerConfig, TimeTrackingConfig
from hookbus_timer.iter_timer import IterTimerHook
from hookbus_timer.time_tracking import TimeTrackingHook

__all__ = ["IterTimerConfig", "IterTimerHook", "TimeTrackingConfig", "TimeTrackingHook"]
