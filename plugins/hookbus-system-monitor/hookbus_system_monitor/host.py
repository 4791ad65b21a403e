"""Metrics of the host: CPU, memory, disk and network.

Usable without hookbus.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from hookbus_system_monitor.cgroup import Cgroup
from hookbus_system_monitor.memory import get_process_memory, get_swap_memory, get_system_memory
from hookbus_system_monitor.readings import GB, MB, Probe, Rate

__all__ = ["build_cpu_probes", "build_disk_probes", "build_memory_probes", "build_network_probes"]

Timer = Callable[[], float]


def build_cpu_probes(cgroup: Cgroup, timer: Timer = time.monotonic) -> list[Probe]:
    """Return probes of CPU utilization, and of the CPU temperature if there is a sensor.

    Args:
        cgroup: Control group with the limits of the process.
        timer: Function that returns the time of a monotonic clock in seconds.
    """
    probes = [Probe("CPU utilization", ("cpu_percent", "process_cpu_percent"), _CpuReader(cgroup, timer).read)]
    if _read_temperatures():
        probes.append(Probe("CPU temperature", ("cpu_celsius",), lambda: (max(_read_temperatures()),)))
    return probes


def build_memory_probes(cgroup: Cgroup) -> list[Probe]:
    """Return probes of the memory of the system, swap and the process."""
    names = ("memory_used_gb", "memory_percent", "swap_used_gb", "swap_percent")

    def read() -> Sequence[float]:
        memory, swap = get_system_memory(cgroup), get_swap_memory(cgroup)
        return memory.used / GB, memory.percent, swap.used / GB, swap.percent

    return [
        Probe("system memory", names, read),
        Probe("process memory", ("process_memory_gb",), lambda: (get_process_memory() / GB,)),
    ]


def build_disk_probes(path: Path, timer: Timer = time.monotonic) -> list[Probe]:
    """Return probes of the traffic of all disks and the usage of one disk.

    Args:
        path: Path on the disk whose usage is measured.
        timer: Function that returns the time of a monotonic clock in seconds.
    """
    return [
        Probe(
            "disk traffic", ("disk_read_mb_per_s", "disk_write_mb_per_s"), _TrafficReader(_read_disk_bytes, timer).read
        ),
        Probe(f"disk usage of {path}", ("disk_percent",), lambda: (psutil.disk_usage(str(path)).percent,)),
    ]


def build_network_probes(timer: Timer = time.monotonic) -> list[Probe]:
    """Return a probe of the traffic of all network interfaces.

    Args:
        timer: Function that returns the time of a monotonic clock in seconds.
    """
    names = ("net_received_mb_per_s", "net_sent_mb_per_s")
    return [Probe("network traffic", names, _TrafficReader(_read_network_bytes, timer).read)]


class _CpuReader:
    """CPU utilization between two readings."""

    def __init__(self, cgroup: Cgroup, timer: Timer) -> None:
        self._cgroup, self._timer = cgroup, timer
        self._process = psutil.Process()
        self._rate = Rate()
        self._was_read = False

    def read(self) -> Sequence[float | None]:
        """Return the utilization of all available CPUs and, relative to one CPU, of this process, in percent.

        Both are None in the first reading.
        """
        utilization = self._read_system(), float(self._process.cpu_percent())
        # psutil returns a meaningless 0 on the first call of `cpu_percent`.
        was_read, self._was_read = self._was_read, True
        return utilization if was_read else (None, None)

    def _read_system(self) -> float | None:
        cpus, used = self._cgroup.get_cpus(), self._cgroup.get_cpu_seconds()
        if cpus is None or used is None or cpus >= (psutil.cpu_count() or 1):
            return float(psutil.cpu_percent())
        rate = self._rate.per_second(used, self._timer())
        return None if rate is None else 100 * rate / cpus


class _TrafficReader:
    """Rates of two byte counters, in MB per second."""

    def __init__(self, counters: Callable[[], tuple[int, int]], timer: Timer) -> None:
        self._counters, self._timer = counters, timer
        self._rates = Rate(), Rate()

    def read(self) -> Sequence[float | None]:
        """Return the rates since the last reading; None in the first reading."""
        now = self._timer()
        return [rate.per_second(count / MB, now) for rate, count in zip(self._rates, self._counters(), strict=True)]


def _read_disk_bytes() -> tuple[int, int]:
    counters = psutil.disk_io_counters()
    if counters is None:
        raise OSError("the system has no disk counters")
    return counters.read_bytes, counters.write_bytes


def _read_network_bytes() -> tuple[int, int]:
    counters = psutil.net_io_counters()
    return counters.bytes_recv, counters.bytes_sent


def _read_temperatures() -> list[float]:
    """Return the temperatures of all CPU sensors in degrees Celsius."""
    try:
        sensors = psutil.sensors_temperatures()
    except (AttributeError, OSError):  # not available on macOS and Windows; permission denied in some containers
        return []
    chips = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "cpu-thermal")
    return [entry.current for chip in chips for entry in sensors.get(chip, ())]
