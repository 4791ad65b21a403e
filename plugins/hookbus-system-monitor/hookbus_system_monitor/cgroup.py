"""What the control group of this process may use: memory, swap and CPU time, for cgroup v1 and v2.

In a container the kernel still shows the host's memory and CPUs; the limits are in the files that are read here.
Their meaning is in the kernel's documentation: `admin-guide/cgroup-v2.rst` and `admin-guide/cgroup-v1/memory.rst`.

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
"""So many bytes are what v1 writes for no limit, or more. What is used is not asked for then: that takes long."""


class Usage(NamedTuple):
    """A limit, and what of it is used, in bytes."""

    limit: int
    used: int


class Cgroup:
    """The control group of this process; each answer is None where there is no limit, or none that can be read.

    Which groups have a limit is looked up once, when it is made: opening a file takes longer than reading it. The
    limits themselves, and what is used of them, are read anew each time.

    Args:
        root: where the control groups are mounted.
        own: the file that says in which groups this process is.
    """

    def __init__(self, root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> None:
        self._root, self._paths = root, _paths(own)
        self._memory_of = _memory_v1 if "memory" in self._paths else _memory_v2
        self._swap_of = _swap_v1 if "memory" in self._paths else _swap_v2
        self._cpus_of = _cpus_v1 if "cpu" in self._paths else _cpus_v2
        self._memory = _those_with(self._memory_of, self._groups("memory"))
        self._swap = _those_with(self._swap_of, self._groups("memory"))
        self._cpus = _those_with(self._cpus_of, self._groups("cpu"))
        self._accounts = self._groups("cpuacct" if "cpuacct" in self._paths else "cpu")

    def memory(self) -> Usage | None:
        """The tightest limit of memory here or above; files that the kernel can drop at once do not count as used."""
        return _tightest(self._memory_of, self._memory)

    def swap(self) -> Usage | None:
        """The tightest limit of swap here or above."""
        return _tightest(self._swap_of, self._swap)

    def cpus(self) -> float | None:
        """How many CPUs' time may be used, a fraction included."""
        return _tightest(self._cpus_of, self._cpus)

    def cpu_seconds(self) -> float | None:
        """CPU time that was used so far, in seconds; only growth has a meaning."""
        if not self._accounts:
            return None
        if "cpuacct" in self._paths:
            used, unit = _number(self._accounts[0] / "cpuacct.usage"), NANOSECONDS
        else:
            used, unit = _field(self._accounts[0] / "cpu.stat", "usage_usec"), MICROSECONDS
        return None if used is None else used / unit

    def _groups(self, controller: str) -> list[Path]:
        """The directories of the group and of those above it, as far as this process can see them."""
        if controller in self._paths:
            top, path = self._root / controller, self._paths[controller]
        else:
            top, path = self._root, self._paths.get("", "/")
        own = top / path.strip("/")
        groups = [own, *own.parents] if own != top else [top]
        return [group for group in groups if group.is_relative_to(top) and group.is_dir()]


def _paths(own: Path) -> dict[str, str]:
    """The group of this process for each controller of v1, and under "" that of v2."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return {}
    found = [line.split(":", 2) for line in lines if line.count(":") >= 2]
    return {name: path for _, names, path in found for name in names.split(",")}


def _those_with(limit_of: Callable[[Path], T | None], groups: list[Path]) -> list[Path]:
    return [group for group in groups if limit_of(group) is not None]


def _tightest(limit_of: Callable[[Path], T | None], groups: list[Path]) -> T | None:
    return min((limit for group in groups if (limit := limit_of(group)) is not None), default=None)


def _memory_v1(group: Path) -> Usage | None:
    return _usage(group, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def _memory_v2(group: Path) -> Usage | None:
    return _usage(group, "memory.max", "memory.current", "inactive_file")


def _usage(group: Path, limit: str, usage: str, droppable: str) -> Usage | None:
    most = _number(group / limit)
    used = _number(group / usage) if most is not None and most < NO_LIMIT else None
    if most is None or used is None:
        return None
    return Usage(most, max(used - (_field(group / "memory.stat", droppable) or 0), 0))


def _swap_v1(group: Path) -> Usage | None:
    """In v1 there is only the sum of memory and swap."""
    both_limit = _number(group / "memory.memsw.limit_in_bytes")
    if both_limit is None or both_limit >= NO_LIMIT:
        return None
    names = ("memory.limit_in_bytes", "memory.memsw.usage_in_bytes", "memory.usage_in_bytes")
    limit, both_used, used = (_number(group / name) for name in names)
    if limit is None or both_used is None or used is None:
        return None
    return Usage(max(both_limit - limit, 0), max(both_used - used, 0))


def _swap_v2(group: Path) -> Usage | None:
    most, used = _number(group / "memory.swap.max"), _number(group / "memory.swap.current")
    return None if most is None or used is None else Usage(most, used)


def _cpus_v1(group: Path) -> float | None:
    quota, period = _number(group / "cpu.cfs_quota_us"), _number(group / "cpu.cfs_period_us")
    return quota / period if quota is not None and quota > 0 and period else None


def _cpus_v2(group: Path) -> float | None:
    words = _text(group / "cpu.max").split()
    return int(words[0]) / int(words[1]) if len(words) == 2 and words[0] != "max" else None


def _number(path: Path) -> int | None:
    """The number in a file; None for `max`, and where there is no such file."""
    text = _text(path).strip()
    return int(text) if text.lstrip("-").isdigit() else None


def _field(path: Path, name: str) -> int | None:
    """The number behind a name in a file of lines."""
    pairs = (line.split() for line in _text(path).splitlines())
    return next((int(pair[1]) for pair in pairs if len(pair) == 2 and pair[0] == name), None)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
