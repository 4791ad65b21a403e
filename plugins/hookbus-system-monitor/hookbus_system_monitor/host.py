"""Metrics of the host: CPU, memory, disk and network.

Usable without hookbus.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path

import psutil

from hookbus_system_monitor.cgroup import Cgroup
from hookbus_system_monitor.memory import Memory, get_process_memory, get_swap_memory, get_system_memory
from hookbus_system_monitor.readings import GB, MB, Probe, Rate

Timer = Callable[[], float]
"""Function that returns the time of a monotonic clock in seconds."""


def build_cpu_probes(cgroup: Cgroup, timer: Timer = time.monotonic) -> list[Probe]:
    """Return probes of CPU utilization, and of the CPU temperature if there is a sensor."""
    probes = [
        Probe("CPU utilization", ("cpu_percent",), _AfterFirst(_build_cpu_reader(cgroup, timer)).read),
        Probe(
            "CPU utilization of the process",
            ("process_cpu_percent",),
            _AfterFirst(_build_process_reader()).read,
        ),
    ]
    with suppress(Exception):  # not available on macOS and Windows; permission denied or invalid files in containers
        _read_temperature()
        probes.append(Probe("CPU temperature", ("cpu_celsius",), lambda: (_read_temperature(),)))
    return probes


def build_memory_probes(cgroup: Cgroup) -> list[Probe]:
    """Return probes of the memory of the system, swap and the process."""

    def read(get_memory: Callable[[Cgroup], Memory]) -> Sequence[float]:
        memory = get_memory(cgroup)
        return memory.used / GB, memory.percent

    return [
        Probe("system memory", ("memory_used_gb", "memory_percent"), partial(read, get_system_memory)),
        Probe("swap memory", ("swap_used_gb", "swap_percent"), partial(read, get_swap_memory)),
        Probe("process memory", ("process_memory_gb",), lambda: (get_process_memory() / GB,)),
    ]


def build_disk_probes(path: Path, timer: Timer = time.monotonic) -> list[Probe]:
    """Return probes of the traffic of all disks and the usage of one disk.

    Args:
        path: Path on the disk whose usage is measured.
    """
    names = ("disk_read_mb_per_s", "disk_write_mb_per_s")
    return [
        _build_traffic_probe("disk", names, "disk_io_counters", ("read_bytes", "write_bytes"), timer),
        Probe(f"disk usage of {path}", ("disk_percent",), lambda: (psutil.disk_usage(str(path)).percent,)),
    ]


def build_network_probes(timer: Timer = time.monotonic) -> list[Probe]:
    """Return a probe of the traffic of all network interfaces."""
    names = ("net_received_mb_per_s", "net_sent_mb_per_s")
    return [_build_traffic_probe("network", names, "net_io_counters", ("bytes_recv", "bytes_sent"), timer)]


def _build_process_reader() -> Callable[[], float]:
    # A process object of its own: psutil measures since the last call of the same object.
    get_process = cache(psutil.Process)
    return lambda: float(get_process().cpu_percent())


class _AfterFirst:
    """Reader without the first successful value, for which psutil returns a meaningless 0."""

    def __init__(self, read: Callable[[], float | None]) -> None:
        self._read, self._was_read = read, False

    def read(self) -> Sequence[float | None]:
        """Return the value; None in the first reading."""
        value = self._read()
        was_read, self._was_read = self._was_read, True
        return (value if was_read else None,)


def _build_cpu_reader(cgroup: Cgroup, timer: Timer) -> Callable[[], float | None]:
    """Return a function that returns the utilization of all available CPUs since its last call, in percent."""
    cpu_rate = Rate()

    def read() -> float | None:
        cpus = cgroup.get_cpus()
        if cpus is None or cpus >= (psutil.cpu_count() or 1):
            return float(psutil.cpu_percent())
        used = cgroup.get_cpu_seconds()
        if used is None:
            raise OSError("the CPU time of the control group is unknown")
        rate = cpu_rate.per_second(used, timer())
        return None if rate is None else 100 * rate / cpus

    return read


def _build_traffic_probe(
    kind: str, names: tuple[str, str], function: str, counters: tuple[str, str], timer: Timer
) -> Probe:
    """Return a probe of the rates of two byte counters of a function of psutil, in MB per second."""
    rates = Rate(), Rate()

    def read() -> Sequence[float | None]:
        counts = getattr(psutil, function)()
        if counts is None:
            raise OSError(f"the system has no {kind} counters")
        now = timer()
        return [rate.per_second(getattr(counts, name) / MB, now) for rate, name in zip(rates, counters, strict=True)]

    return Probe(f"{kind} traffic", names, read)


def _read_temperature() -> float:
    """Return the temperature of the hottest CPU sensor in degrees Celsius."""
    sensors = psutil.sensors_temperatures()
    chips = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "cpu-thermal")
    values = [entry.current for chip in chips for entry in sensors.get(chip, ()) if entry.current is not None]
    if not values:
        raise OSError("the system has no CPU sensor")
    return float(max(values))
