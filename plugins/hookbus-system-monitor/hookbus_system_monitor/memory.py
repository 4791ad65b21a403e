"""Memory of the system or container, swap, and the process: log lines in the format of MMDetection, and warnings.

Usable without hookbus.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Iterator
from functools import lru_cache
from statistics import correlation, linear_regression
from typing import NamedTuple

import psutil

try:
    import resource
except ModuleNotFoundError:  # Windows
    resource = None  # type: ignore[assignment]

from hookbus_system_monitor.cgroup import Cgroup, Usage
from hookbus_system_monitor.readings import GB, MB

MIN_R_SQUARED = 0.95
MIN_RELATIVE_GROWTH = 0.02


class Memory(NamedTuple):
    """Memory usage, in bytes.

    Attributes:
        total: Total memory.
        available: Memory available for new allocations.
        used: Used memory.
        percent: Used share, from 0 to 100.
    """

    total: int
    available: int
    used: int
    percent: float


def get_system_memory(cgroup: Cgroup) -> Memory:
    """Return the memory of the system, or of the container if its limit is lower."""
    host = psutil.virtual_memory()
    # What `percent` is the share of. `used` excludes the caches in psutil before 7.1, and on macOS in every version.
    used = host.total - host.available
    return _apply_limit(Memory(host.total, host.available, used, host.percent), cgroup.get_memory())


def get_swap_memory(cgroup: Cgroup) -> Memory:
    """Return the swap space of the system, or of the container if its limit is lower."""
    host = psutil.swap_memory()
    return _apply_limit(Memory(host.total, host.free, host.used, host.percent), cgroup.get_swap())


def get_process_memory() -> int:
    """Return the resident set size of this process in bytes."""
    return int(get_process().memory_info().rss)


def get_process_peak(current: int) -> int:
    """Return the peak resident set size of this process in bytes.

    Args:
        current: Current resident set size in bytes, the lower bound of the result.
    """
    if resource is None:
        return max(getattr(get_process().memory_info(), "peak_wset", 0), current)
    # The kernel updates ru_maxrss with a delay, so it may be below the current size. Its unit is kilobytes, or bytes
    # on macOS.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return max(peak if sys.platform == "darwin" else peak * 1024, current)


def get_process() -> psutil.Process:
    """Return this process."""
    return _get_process(os.getpid())


@lru_cache(maxsize=1)
def _get_process(pid: int) -> psutil.Process:
    # Cached: constructing a psutil.Process takes longer than reading its memory. The PID is the key, so a forked
    # process does not reuse the object of its parent.
    return psutil.Process(pid)


def _apply_limit(host: Memory, limit: Usage | None) -> Memory:
    if limit is None or limit.limit >= host.total:
        return host
    total, used = limit.limit, min(limit.used, limit.limit)
    return Memory(total, total - used, used, 100 * used / total if total else 0.0)


def format_memory(memory: Memory, swap: Memory, process: int) -> tuple[str, str]:
    """Format the memory usage in sentences, and as named fields."""
    sentences = (
        f"The system has {memory.total / GB:.0f} GB ({_format_mb(memory.available)} + {_format_mb(memory.used)}) of "
        f"memory and {swap.total / GB:.0f} GB ({_format_mb(swap.available)} + {_format_mb(swap.used)}) of swap memory "
        f"in total. Currently {_format_mb(memory.used)} ({memory.percent:.1f}%) of memory and {_format_mb(swap.used)} "
        f"({swap.percent:.1f}%) of swap memory were consumed. "
        f"And the current training process consumed {_format_mb(process)} of memory."
    )
    fields = (
        f"Memory information available_memory: {_format_mb(memory.available)}, used_memory: {_format_mb(memory.used)}, "
        f"memory_utilization: {memory.percent:.1f} %, available_swap_memory: {_format_mb(swap.available)}, "
        f"used_swap_memory: {_format_mb(swap.used)}, swap_memory_utilization: {swap.percent:.1f} %, "
        f"current_process_memory: {_format_mb(process)}"
    )
    return sentences, fields


def _format_mb(size: int) -> str:
    return f"{round(size / MB)} MB"


class LeakDetector:
    """Detect steady growth of a value once.

    A value grows steadily if the linear fit of a full window has an R^2 of at least 0.95 and rises over the window by
    at least 2 % of the last value. Steps and growth that levels off meet these conditions at most briefly.

    Args:
        size: Number of points in the window, at least 3.
    """

    def __init__(self, size: int = 20) -> None:
        self._points: deque[tuple[float, float]] = deque(maxlen=size)
        self._is_reported = False

    def add(self, x: float, y: float) -> float | None:
        """Add a point.

        Args:
            x: Position, greater than the previous one.
            y: Value, greater than 0.

        Returns:
            Increase per unit of x when steady growth is detected for the first time, otherwise None.
        """
        self._points.append((x, y))
        if self._is_reported or len(self._points) < (self._points.maxlen or 0):
            return None
        xs, ys = zip(*self._points, strict=True)
        slope = linear_regression(xs, ys).slope
        is_growing = slope * (x - xs[0]) >= MIN_RELATIVE_GROWTH * y
        self._is_reported = is_growing and correlation(xs, ys) ** 2 >= MIN_R_SQUARED
        return slope if self._is_reported else None


class ThresholdWatch:
    """Warn each time a memory size rises above a limit, and once about steady growth.

    Args:
        label: Name of the memory for messages.
        limit: Limit in GB; None for no limit.
    """

    def __init__(self, label: str, limit: float | None) -> None:
        self._label, self._limit = label, limit
        self._is_above_limit = False
        self._leak_detector = LeakDetector()

    def update(self, iteration: int, size: int) -> Iterator[str]:
        """Add a size and yield the warnings.

        Args:
            iteration: Number of the iteration, greater than the previous one.
            size: Size in bytes.
        """
        is_above = self._limit is not None and size > self._limit * GB
        if is_above and not self._is_above_limit:
            yield f"{self._label} is {size / GB:.2f} GB, which exceeds the `warn_threshold` of {self._limit:g} GB."
        self._is_above_limit = is_above
        rate = self._leak_detector.add(iteration, size)
        if rate is not None:
            yield (
                f"{self._label} grows steadily, by {1000 * rate / GB:.3g} GB per 1000 iterations, and is now "
                f"{size / GB:.2f} GB, which indicates a memory leak. Detach stored losses and limit the size of caches."
            )
