"""How much memory there is and is used: of the system or container, of swap, of this process.

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

__all__ = ["Memory", "process_memory", "process_peak", "swap_memory", "system_memory"]


class Memory(NamedTuple):
    """Some memory, in bytes.

    Attributes:
        total: all of it.
        available: what can still be had.
        used: what cannot.
        percent: what of it is used, from 0 to 100.
    """

    total: int
    available: int
    used: int
    percent: float


def system_memory(cgroup: Cgroup) -> Memory:
    """The memory of the system, or of the container where its limit is lower."""
    host = psutil.virtual_memory()
    return _within(Memory(host.total, host.available, host.used, host.percent), cgroup.memory())


def swap_memory(cgroup: Cgroup) -> Memory:
    """The swap space of the system, or of the container where its limit is lower."""
    host = psutil.swap_memory()
    return _within(Memory(host.total, host.free, host.used, host.percent), cgroup.swap())


def process_memory() -> int:
    """The memory of this process that is in RAM (resident set size), in bytes."""
    return int(_process(os.getpid()).memory_info().rss)


def process_peak(now: int) -> int:
    """The most memory that this process ever had in RAM, in bytes.

    Args:
        now: what it has; the kernel notes the peak with a delay, so that it may lie below.
    """
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return max(peak if sys.platform == "darwin" else peak * 1024, now)


@lru_cache(maxsize=1)
def _process(pid: int) -> psutil.Process:
    """What psutil finds out about a process when it is first asked, which takes longer than the rest."""
    return psutil.Process(pid)


def _within(host: Memory, limit: Usage | None) -> Memory:
    if limit is None or limit.limit >= host.total:
        return host
    total, used = limit.limit, min(limit.used, limit.limit)
    return Memory(total, total - used, used, 100 * used / total if total else 0.0)
