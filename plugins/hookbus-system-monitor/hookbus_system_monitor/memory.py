"""Memory of the system or container, swap, and the process; log lines in the format of MMDetection.

Usable without hookbus.
"""

from __future__ import annotations

import os
import resource
import sys
from functools import lru_cache
from typing import NamedTuple

import psutil

from hookbus_system_monitor.cgroup import Cgroup, Usage
from hookbus_system_monitor.readings import GB, MB


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
    return _apply_limit(Memory(host.total, host.available, host.used, host.percent), cgroup.get_memory())


def get_swap_memory(cgroup: Cgroup) -> Memory:
    """Return the swap space of the system, or of the container if its limit is lower."""
    host = psutil.swap_memory()
    return _apply_limit(Memory(host.total, host.free, host.used, host.percent), cgroup.get_swap())


def get_process_memory() -> int:
    """Return the resident set size of this process in bytes."""
    return int(_get_process(os.getpid()).memory_info().rss)


def get_process_peak(current: int) -> int:
    """Return the peak resident set size of this process in bytes.

    Args:
        current: Current resident set size in bytes, the lower bound of the result.
    """
    # The kernel updates ru_maxrss with a delay, so it may be below the current size. Its unit is kilobytes, or bytes
    # on macOS.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return max(peak if sys.platform == "darwin" else peak * 1024, current)


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


def format_memory_sentence(memory: Memory, swap: Memory, process: int) -> str:
    """Format the memory usage in sentences.

    Args:
        memory: Memory of the system.
        swap: Swap space of the system.
        process: Resident memory of this process in bytes.
    """
    return (
        f"The system has {memory.total / GB:.0f} GB ({_format_mb(memory.available)} + {_format_mb(memory.used)}) of "
        f"memory and {swap.total / GB:.0f} GB ({_format_mb(swap.available)} + {_format_mb(swap.used)}) of swap memory "
        f"in total. Currently {_format_mb(memory.used)} ({memory.percent:.1f}%) of memory and {_format_mb(swap.used)} "
        f"({swap.percent:.1f}%) of swap memory were consumed. "
        f"And the current training process consumed {_format_mb(process)} of memory."
    )


def format_memory_fields(memory: Memory, swap: Memory, process: int) -> str:
    """Format the memory usage as named fields.

    Args:
        memory: Memory of the system.
        swap: Swap space of the system.
        process: Resident memory of this process in bytes.
    """
    return (
        f"Memory information available_memory: {_format_mb(memory.available)}, used_memory: {_format_mb(memory.used)}, "
        f"memory_utilization: {memory.percent:.1f} %, available_swap_memory: {_format_mb(swap.available)}, "
        f"used_swap_memory: {_format_mb(swap.used)}, swap_memory_utilization: {swap.percent:.1f} %, "
        f"current_process_memory: {_format_mb(process)}"
    )


def _format_mb(size: int) -> str:
    return f"{round(size / MB)} MB"
