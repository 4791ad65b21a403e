"""Clocks that measure the parts of an iteration on the host or on an asynchronous device.

Usable without hookbus.
"""

from __future__ import annotations

import time
from typing import Any, Protocol

import torch

__all__ = ["Clock", "DeviceClock", "HostClock", "get_clock"]


class Clock(Protocol):
    """Clock that records marks and measures the time between them."""

    def mark(self) -> Any:
        """Record a mark without blocking."""

    def is_complete(self, mark: Any) -> bool:
        """Return whether a mark and all earlier marks are complete, without blocking."""

    def wait(self, mark: Any) -> None:
        """Block until a mark is complete."""

    def elapsed(self, first: Any, second: Any) -> float:
        """Return the seconds between two complete marks."""


class HostClock:
    """Clock of the host."""

    mark = staticmethod(time.perf_counter)

    def is_complete(self, mark: float) -> bool:
        """Return True: marks on the host are complete at once."""
        return True

    def wait(self, mark: float) -> None:
        """Return at once."""

    def elapsed(self, first: float, second: float) -> float:
        """Return the seconds between two marks."""
        return second - first


class DeviceClock:
    """Clock of a device: records events in the current stream of the device.

    Args:
        device: Device on which the events are recorded.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def mark(self) -> torch.Event:
        """Record an event after all work queued on the current stream."""
        event = torch.Event(self._device, enable_timing=True)
        event.record()
        return event

    def is_complete(self, mark: torch.Event) -> bool:
        """Return whether the device has reached the event."""
        return bool(mark.query())

    def wait(self, mark: torch.Event) -> None:
        """Block until the device has reached the event."""
        mark.synchronize()

    def elapsed(self, first: torch.Event, second: torch.Event) -> float:
        """Return the seconds between two events, measured by the device."""
        return float(first.elapsed_time(second)) / 1000  # `elapsed_time` returns milliseconds


def get_clock(device: torch.device) -> Clock:
    """Return the clock for a device: events on CUDA, the host's clock otherwise."""
    return DeviceClock(device) if device.type == "cuda" else HostClock()
