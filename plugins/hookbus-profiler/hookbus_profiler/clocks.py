"""Clocks for the parts of an iteration: the host's, and that of a device that works while the host goes on.

Usable without hookbus.
"""

from __future__ import annotations

import time
from typing import Any, Protocol

import torch

__all__ = ["Clock", "DeviceClock", "HostClock", "clock_for"]


class Clock(Protocol):
    """Makes marks, and tells later how far apart they are."""

    def mark(self) -> Any:
        """A mark of now. Waits for nothing."""

    def between(self, first: Any, second: Any) -> float | None:
        """Seconds from one mark to a later one; None where that is not known yet. Waits for nothing."""


class HostClock:
    """The clock of the host."""

    def mark(self) -> float:
        """Seconds that never go back."""
        return time.perf_counter()

    def between(self, first: float, second: float) -> float:
        """Seconds from one mark to a later one."""
        return second - first


class DeviceClock:
    """Events in the queue of a device: they are marked when the device gets there, and read when that has happened.

    Args:
        device: where they are recorded.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def mark(self) -> torch.Event:
        """An event behind everything that the device was told to do."""
        event = torch.Event(self._device, enable_timing=True)
        event.record()
        return event

    def between(self, first: torch.Event, second: torch.Event) -> float | None:
        """Seconds from one event to a later one; None where the device has not got there yet."""
        return first.elapsed_time(second) / 1000 if second.query() else None


def clock_for(device: torch.device) -> Clock:
    """The clock by which the work of a device is measured."""
    return DeviceClock(device) if device.type == "cuda" else HostClock()
