"""Memory of the system or container, swap, and the process.

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

__all__ = ["Memory", "get_process_memory", "get_process_peak", "get_swap_memory", "get_system_memory"]


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
