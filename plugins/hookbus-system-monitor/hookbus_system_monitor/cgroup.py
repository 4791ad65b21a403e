"""Limits and usage of the process's control group: memory, swap and CPU time, for cgroup v1 and v2.

Inside a container, `/proc` reports the memory and CPUs of the host; the limits are only in the cgroup files. Reference:
`admin-guide/cgroup-v2.rst` and `admin-guide/cgroup-v1/memory.rst` of the kernel documentation.

Usable without hookbus.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

T = TypeVar("T", "Usage", float)

MICROSECONDS_PER_SECOND = 1_000_000
NANOSECONDS_PER_SECOND = 1_000_000_000

NO_LIMIT = "max"
"""Content of a limit in v2 that means "no limit"."""

NO_LIMIT_BYTES = 2**62
"""Limits in bytes from this value on mean "no limit" in v1."""


class Usage(NamedTuple):
    """Limit and current usage, in bytes."""

    limit: int
    used: int


class Cgroup:
    """Control group of this process.

    The groups with a limit are determined on construction; limits and usage are read on each call. An unreadable or
    invalid file raises an OSError or ValueError then, because neither 0 nor the value of the host is correct.

    Args:
        root: Mount point of the control groups.
        own: File that lists the groups of this process.

    Attributes:
        get_memory: Function that returns the lowest memory limit of the group and its ancestors, with the usage
            excluding inactive page cache; None if there is no limit.
        get_swap: Function that returns the lowest swap limit; None if there is no limit.
        get_cpus: Function that returns the lowest CPU limit as a (fractional) number; None if there is no limit.
    """

    def __init__(self, root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> None:
        self._root, self._paths = root, _parse_paths(own)
        self.get_memory = self._build_reader("memory", _read_memory_v1, _read_memory_v2)
        self.get_swap = self._build_reader("memory", _read_swap_v1, _read_swap_v2)
        self.get_cpus = self._build_reader("cpu", _read_cpus_v1, _read_cpus_v2)
        self._cpu_time_groups = self._find_groups("cpuacct" if "cpuacct" in self._paths else "cpu")

    def get_cpu_seconds(self) -> float | None:
        """Return the CPU time of the group in seconds, from an arbitrary start; None if there is no group."""
        if not self._cpu_time_groups:
            return None
        group = self._cpu_time_groups[0]
        if "cpuacct" in self._paths:
            return _read_int(group / "cpuacct.usage") / NANOSECONDS_PER_SECOND
        return _read_field(group / "cpu.stat", "usage_usec") / MICROSECONDS_PER_SECOND

    def _build_reader(
        self, controller: str, read_v1: Callable[[Path], T | None], read_v2: Callable[[Path], T | None]
    ) -> Callable[[], T | None]:
        """Return a function that returns the lowest limit of the group and its ancestors."""
        read_limit = read_v1 if controller in self._paths else read_v2
        # Groups without a limit are not opened again: opening a file takes longer than reading it.
        groups = [group for group in self._find_groups(controller) if _may_be_limited(read_limit, group)]
        return partial(_min_limit, read_limit, groups)

    def _find_groups(self, controller: str) -> list[Path]:
        """Return the existing directories of the group and its ancestors."""
        if controller in self._paths:
            top, path = self._root / controller, self._paths[controller]
        else:
            top, path = self._root, self._paths.get("", "/")
        # In a container the path is that of the host and may not exist; then only the mounted root applies.
        own = top / path.strip("/")
        groups = [own, *own.parents] if own != top else [top]
        return [group for group in groups if group.is_relative_to(top) and os.path.isdir(group)]


def _parse_paths(own: Path) -> dict[str, str]:
    """Return the group path of this process by v1 controller; the v2 group has the key ""."""
    try:
        lines = own.read_text("utf-8", "replace").splitlines()
    except OSError:
        return {}
    entries = [line.split(":", 2) for line in lines if line.count(":") >= 2]
    return {name: path for _, names, path in entries for name in names.split(",")}


def _may_be_limited(read_limit: Callable[[Path], T | None], group: Path) -> bool:
    try:
        return read_limit(group) is not None
    except (FileNotFoundError, NotADirectoryError):  # the root has no limits, and controllers can be disabled
        return False
    except (OSError, ValueError):  # an unknown limit, which is reported when it is read
        return True


def _min_limit(read_limit: Callable[[Path], T | None], groups: list[Path]) -> T | None:
    return min((limit for group in groups if (limit := read_limit(group)) is not None), default=None)


def _read_memory_v1(group: Path) -> Usage | None:
    return _read_usage(group, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def _read_memory_v2(group: Path) -> Usage | None:
    return _read_usage(group, "memory.max", "memory.current", "inactive_file")


def _read_usage(group: Path, limit: str, usage: str, reclaimable: str) -> Usage | None:
    max_bytes = _read_limit(group / limit)
    # The usage is read only for groups with a limit, because the read is slow.
    if max_bytes is None:
        return None
    used = _read_int(group / usage)
    with suppress(FileNotFoundError):
        used -= _read_field(group / "memory.stat", reclaimable)
    return Usage(max_bytes, max(used, 0))


def _read_swap_v1(group: Path) -> Usage | None:
    # v1 limits and counts only the sum of memory and swap (memsw).
    both_limit = _read_limit(group / "memory.memsw.limit_in_bytes")
    if both_limit is None:
        return None
    names = ("memory.limit_in_bytes", "memory.memsw.usage_in_bytes", "memory.usage_in_bytes")
    limit, both_used, used = (_read_int(group / name) for name in names)
    return Usage(max(both_limit - limit, 0), max(both_used - used, 0))


def _read_swap_v2(group: Path) -> Usage | None:
    max_bytes = _read_limit(group / "memory.swap.max")
    return None if max_bytes is None else Usage(max_bytes, _read_int(group / "memory.swap.current"))


def _read_cpus_v1(group: Path) -> float | None:
    quota, period = _read_int(group / "cpu.cfs_quota_us"), group / "cpu.cfs_period_us"
    return quota / _check_positive(period, _read_int(period)) if quota > 0 else None


def _read_cpus_v2(group: Path) -> float | None:
    path = group / "cpu.max"
    quota, _, period = path.read_text("utf-8", "replace").strip().partition(" ")
    if quota == NO_LIMIT:
        return None
    return _parse_int(path, quota) / _check_positive(path, _parse_int(path, period))


def _read_limit(path: Path) -> int | None:
    """Return the limit in bytes in a file; None for no limit."""
    text = path.read_text("utf-8", "replace").strip()
    limit = None if text == NO_LIMIT else _parse_int(path, text)
    return limit if limit is not None and limit < NO_LIMIT_BYTES else None


def _read_int(path: Path) -> int:
    return _parse_int(path, path.read_text("utf-8", "replace").strip())


def _read_field(path: Path, name: str) -> int:
    """Return the integer of a `name value` line in a file."""
    pairs = (line.split() for line in path.read_text("utf-8", "replace").splitlines())
    value = next((pair[1] for pair in pairs if len(pair) == 2 and pair[0] == name), None)
    if value is None:
        raise ValueError(f"{path} has no line {name!r}")
    return _parse_int(path, value)


def _parse_int(path: Path, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{path}: expected an integer, got {text[:50]!r}") from None


def _check_positive(path: Path, value: int) -> int:
    if value <= 0:
        raise ValueError(f"{path}: expected a positive integer, got {value}")
    return value
