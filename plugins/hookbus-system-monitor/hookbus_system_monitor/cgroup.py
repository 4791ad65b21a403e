"""Limits and usage of the process's control group: memory, swap and CPU time, for cgroup v1 and v2.

Inside a container, `/proc` reports the memory and CPUs of the host; the limits are only in the cgroup files. Reference:
`admin-guide/cgroup-v2.rst` and `admin-guide/cgroup-v1/memory.rst` of the kernel documentation.

Usable without hookbus.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

__all__ = ["Cgroup", "Usage"]

T = TypeVar("T", "Usage", float)

MICROSECONDS = 1_000_000
NANOSECONDS = 1_000_000_000

NO_LIMIT = 2**62
"""Limits in bytes from this value on mean "no limit" in v1."""


class Usage(NamedTuple):
    """Limit and current usage, in bytes."""

    limit: int
    used: int


class Cgroup:
    """Control group of this process.

    The groups with a limit are determined on construction; limits and usage are read on each call.

    Args:
        root: Mount point of the control groups.
        own: File that lists the groups of this process.
    """

    def __init__(self, root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> None:
        self._root, self._paths = root, _paths(own)
        self._memory_of = _memory_v1 if "memory" in self._paths else _memory_v2
        self._swap_of = _swap_v1 if "memory" in self._paths else _swap_v2
        self._cpus_of = _cpus_v1 if "cpu" in self._paths else _cpus_v2
        # Groups without a limit are not opened again: opening a file takes longer than reading it.
        self._memory = _those_with(self._memory_of, self._groups("memory"))
        self._swap = _those_with(self._swap_of, self._groups("memory"))
        self._cpus = _those_with(self._cpus_of, self._groups("cpu"))
        self._accounts = self._groups("cpuacct" if "cpuacct" in self._paths else "cpu")

    def memory(self) -> Usage | None:
        """Return the lowest memory limit of the group and its ancestors, with the usage excluding inactive page cache.

        None if there is no limit.
        """
        return _tightest(self._memory_of, self._memory)

    def swap(self) -> Usage | None:
        """Return the lowest swap limit of the group and its ancestors; None if there is no limit."""
        return _tightest(self._swap_of, self._swap)

    def cpus(self) -> float | None:
        """Return the lowest CPU limit as a (fractional) number of CPUs; None if there is no limit."""
        return _tightest(self._cpus_of, self._cpus)

    def cpu_seconds(self) -> float | None:
        """Return the CPU time of the group in seconds, from an arbitrary start; None if it cannot be read."""
        if not self._accounts:
            return None
        if "cpuacct" in self._paths:
            used, unit = _number(self._accounts[0] / "cpuacct.usage"), NANOSECONDS
        else:
            used, unit = _field(self._accounts[0] / "cpu.stat", "usage_usec"), MICROSECONDS
        return None if used is None else used / unit

    def _groups(self, controller: str) -> list[Path]:
        """Return the existing directories of the group and its ancestors."""
        if controller in self._paths:
            top, path = self._root / controller, self._paths[controller]
        else:
            top, path = self._root, self._paths.get("", "/")
        # In a container the path is that of the host and may not exist; then only the mounted root applies.
        own = top / path.strip("/")
        groups = [own, *own.parents] if own != top else [top]
        return [group for group in groups if group.is_relative_to(top) and group.is_dir()]


def _paths(own: Path) -> dict[str, str]:
    """Return the group path of this process by v1 controller; the v2 group has the key ""."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return {}
    entries = [line.split(":", 2) for line in lines if line.count(":") >= 2]
    return {name: path for _, names, path in entries for name in names.split(",")}


def _those_with(limit_of: Callable[[Path], T | None], groups: list[Path]) -> list[Path]:
    return [group for group in groups if limit_of(group) is not None]


def _tightest(limit_of: Callable[[Path], T | None], groups: list[Path]) -> T | None:
    return min((limit for group in groups if (limit := limit_of(group)) is not None), default=None)


def _memory_v1(group: Path) -> Usage | None:
    return _usage(group, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def _memory_v2(group: Path) -> Usage | None:
    return _usage(group, "memory.max", "memory.current", "inactive_file")


def _usage(group: Path, limit: str, usage: str, droppable: str) -> Usage | None:
    max_bytes = _number(group / limit)
    # The usage is read only for groups with a limit, because the read is slow.
    used = _number(group / usage) if max_bytes is not None and max_bytes < NO_LIMIT else None
    if max_bytes is None or used is None:
        return None
    return Usage(max_bytes, max(used - (_field(group / "memory.stat", droppable) or 0), 0))


def _swap_v1(group: Path) -> Usage | None:
    # v1 limits and counts only the sum of memory and swap (memsw).
    both_limit = _number(group / "memory.memsw.limit_in_bytes")
    if both_limit is None or both_limit >= NO_LIMIT:
        return None
    names = ("memory.limit_in_bytes", "memory.memsw.usage_in_bytes", "memory.usage_in_bytes")
    limit, both_used, used = (_number(group / name) for name in names)
    if limit is None or both_used is None or used is None:
        return None
    return Usage(max(both_limit - limit, 0), max(both_used - used, 0))


def _swap_v2(group: Path) -> Usage | None:
    max_bytes, used = _number(group / "memory.swap.max"), _number(group / "memory.swap.current")
    return None if max_bytes is None or used is None else Usage(max_bytes, used)


def _cpus_v1(group: Path) -> float | None:
    quota, period = _number(group / "cpu.cfs_quota_us"), _number(group / "cpu.cfs_period_us")
    return quota / period if quota is not None and quota > 0 and period else None


def _cpus_v2(group: Path) -> float | None:
    words = _text(group / "cpu.max").split()
    return int(words[0]) / int(words[1]) if len(words) == 2 and words[0] != "max" else None


def _number(path: Path) -> int | None:
    """Return the integer in a file; None for `max` or a missing file."""
    text = _text(path).strip()
    return int(text) if text.lstrip("-").isdigit() else None


def _field(path: Path, name: str) -> int | None:
    """Return the integer of a `name value` line in a file; None if it is missing."""
    pairs = (line.split() for line in _text(path).splitlines())
    return next((int(pair[1]) for pair in pairs if len(pair) == 2 and pair[0] == name), None)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
