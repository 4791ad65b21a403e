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

    def is_past(self, mark: Any) -> bool:
        """Whether a mark has been reached, and with it all that were made before. Waits for nothing."""

    def wait(self, mark: Any) -> None:
        """Wait until a mark has been reached."""

    def between(self, first: Any, second: Any) -> float:
        """Seconds from one mark to a later one; both have been reached."""


class HostClock:
    """The clock of the host."""

    mark = staticmethod(time.perf_counter)

    def is_past(self, mark: float) -> bool:
        """Always: now is past as soon as it is read."""
        return True

    def wait(self, mark: float) -> None:
        """There is nothing to wait for."""

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

    def is_past(self, mark: torch.Event) -> bool:
        """Whether the device has got there."""
        return bool(mark.query())

    def wait(self, mark: torch.Event) -> None:
        """Wait until the device has got there."""
        mark.synchronize()

    def between(self, first: torch.Event, second: torch.Event) -> float:
        """Seconds from one event to a later one, by the clock of the device."""
        return float(first.elapsed_time(second)) / 1000


def clock_for(device: torch.device) -> Clock:
    """The clock by which the work of a device is measured."""
    return DeviceClock(device) if device.type == "cuda" else HostClock()
