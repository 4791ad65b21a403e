"""Metrics of NVIDIA GPUs from the driver's management library, NVML.

A value that a GPU does not support is None and does not affect the others. An unloaded driver, a lost GPU and a missing
library are not errors: values are omitted while unavailable, and NVML is reinitialized after 1, 2, 4, ... up to 16
readings. The binding itself can raise other exceptions than its own, for example an AttributeError or OSError for a
function that an old version or a foreign library lacks; no exception affects other values or GPUs.

Usable without hookbus.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import pynvml

from hookbus_system_monitor.readings import GB, Probe, Reader, Total, Values, format_reason
from hookbus_system_monitor.visible_devices import Entry, Gpu, select_gpus

T = TypeVar("T")

MAX_PAUSE_READINGS = 16

NOT_AVAILABLE_VALUES = frozenset({2**32 - 1, 2**64 - 1})
"""`NVML_VALUE_NOT_AVAILABLE`, which is -1, as an unsigned integer: returned without an error by some drivers."""

UNAVAILABLE_ERRORS: tuple[type[Exception], ...] = (
    pynvml.NVMLError_Uninitialized,
    pynvml.NVMLError_DriverNotLoaded,
    pynvml.NVMLError_LibraryNotFound,
    pynvml.NVMLError_GpuIsLost,
    pynvml.NVMLError_ResetRequired,
    pynvml.NVMLError_LibRmVersionMismatch,
)
"""Errors of the GPU or driver rather than of a single value, after which the handles are invalid."""


class NvmlProvider:
    """Utilization, memory, temperature, power, clocks and energy of the GPUs of this process.

    Args:
        entries: Devices of this process, see `parse_visible_devices`; None for all.
        use: Whether all metrics except memory are read.
        reader: Reader that reports each unavailable value once.
        info: Function that logs an informational message: no driver at the start, or the driver is available again.
        warn: Function that logs a warning: a driver or GPU has become unavailable.
    """

    def __init__(
        self,
        entries: Sequence[Entry] | None,
        *,
        use: bool = True,
        memory: bool = True,
        reader: Reader,
        info: Callable[[str], None],
        warn: Callable[[str], None],
    ) -> None:
        self._entries, self._use, self._memory = entries, use, memory
        self._reader, self._log_info, self._log_warning = reader, info, warn
        self._probes: dict[int, list[Probe]] = {}
        self._energy: dict[int, Total] = {}
        self._names: Values = {}
        self._working: set[int] = set()
        self._is_open = False
        self._problem = ""
        # Numbers of readings until the next attempt to initialize NVML, and after its failure until the one after.
        self._pause, self._next_pause = 0, 1

    def read(self) -> Values:
        """Return the values of all devices by `gpu<index>/...`; None for an unavailable one."""
        problem, is_attempt = self._problem, True
        if problem or not self._is_open:
            is_attempt = not self._pause
            self._pause = max(self._pause - 1, 0)
            problem = self._open() if is_attempt else problem
        values, lost = self._read_devices()
        self._names |= dict.fromkeys(values)
        if is_attempt:
            self._update_availability(problem or lost)
        return self._names | values

    def close(self) -> None:
        """Shut down NVML; a no-op if closed."""
        if self._is_open:
            with suppress(Exception):
                pynvml.nvmlShutdown()
        self._is_open, self._probes = False, {}

    # -- availability --------------------------------------------------------------------------

    def _open(self) -> str:
        """Initialize NVML and find the devices; return a message if there is a problem, otherwise ""."""
        self.close()
        try:
            pynvml.nvmlInit()
            self._is_open = True
            gpus, problem = _find_gpus()
        except Exception as error:
            return f"the NVIDIA driver is unavailable: {format_reason(error)}"
        chosen = select_gpus(self._entries, gpus)
        self._probes = {index: self._build_probes(index, gpu) for index, gpu in chosen.items()}
        # An unavailable GPU of the machine does not matter if all devices of this process were found.
        return problem if self._entries is None or len(chosen) < len(self._entries) else ""

    def _update_availability(self, problem: str) -> None:
        """Schedule the next attempt, and log a change of the availability."""
        self._pause = self._next_pause if problem else 0
        self._next_pause = min(2 * self._next_pause, MAX_PAUSE_READINGS) if problem else 1
        if problem and not self._problem:
            # A machine without a GPU is not worth a warning; losing one during a run is.
            log = self._log_warning if self._names else self._log_info
            log(f"{problem}. Its values are omitted until it is available.")
        elif self._problem and not problem:
            number = len(self._probes)
            self._log_info(f"the NVIDIA driver is available again, with {number} GPU{'' if number == 1 else 's'}.")
        self._problem = problem

    # -- values --------------------------------------------------------------------------------

    def _read_devices(self) -> tuple[Values, str]:
        """Return the values of the devices, and a message if one of them is lost, otherwise ""."""
        values: Values = {}
        lost = ""
        for index, probes in self._probes.items():
            device, problem = self._read_device(index, probes)
            values |= device
            lost = problem or lost
        return values, lost

    def _read_device(self, index: int, probes: Sequence[Probe]) -> tuple[Values, str]:
        values: Values = {}
        try:
            for probe in probes:
                values |= self._reader.read(probe, reraise=UNAVAILABLE_ERRORS)
        except UNAVAILABLE_ERRORS as error:
            return {name: None for probe in probes for name in probe.names}, f"GPU {index} is unavailable: {error}"
        if any(value is not None for value in values.values()):
            self._working.add(index)
        elif index in self._working:  # stale handles return various errors
            return values, f"GPU {index} is unavailable: none of its values can be read"
        return values, ""

    def _build_probes(self, index: int, gpu: Gpu) -> list[Probe]:
        # Kept across reinitializations, so that the energy continues after the driver was reloaded.
        total = self._energy.setdefault(index, Total())
        probes = (_build_use_probes(gpu.handle, total) if self._use else []) + (
            _build_memory_probes(gpu.handle) if self._memory else []
        )
        return [
            Probe(
                f"{probe.label} of GPU {index} ({gpu.uuid})", tuple(f"gpu{index}/{n}" for n in probe.names), probe.read
            )
            for probe in probes
        ]


def _build_use_probes(handle: Any, energy: Total) -> list[Probe]:
    def build(label: str, name: str, read: Callable[[], int]) -> Probe:
        return Probe(label, (name,), lambda: (_check(read()),))

    def read_joules() -> float:
        return _check(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1000  # millijoules

    return [
        build("utilization", "percent", lambda: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu),
        build("temperature", "celsius", lambda: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)),
        Probe("power", ("watts",), lambda: (_check(pynvml.nvmlDeviceGetPowerUsage(handle)) / 1000,)),
        build("clock", "sm_mhz", lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)),
        build("memory clock", "memory_mhz", lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM)),
        Probe("energy", ("joules",), lambda: (energy.update(read_joules()),)),
    ]


def _build_memory_probes(handle: Any) -> list[Probe]:
    def read() -> Sequence[float]:
        memory = _read_memory_info(handle)
        used, total = _check(memory.used), _check(memory.total)
        if not total:
            raise ValueError("the driver returns a total memory of 0")
        return used / GB, 100 * used / total

    return [Probe("memory", ("memory_used_gb", "memory_percent"), read)]


def _read_memory_info(handle: Any) -> Any:
    # Version 2 separates used memory from memory reserved by the driver; older drivers return only the sum.
    memory = _call_supported(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2))
    return pynvml.nvmlDeviceGetMemoryInfo(handle) if memory is None else memory


def _call_supported(call: Callable[[], T]) -> T | None:
    """Return the result of a function of the driver; None if the driver, binding or GPU does not support it."""
    try:
        return call()
    except UNAVAILABLE_ERRORS:
        raise
    except Exception:
        return None


def _check(value: int) -> float:
    """Return a value of the driver, and raise if it denotes a missing value."""
    if value in NOT_AVAILABLE_VALUES:
        raise ValueError("the driver returns no value")
    return float(value)


def _find_gpus() -> tuple[list[Gpu | None], str]:
    """Return the GPUs of the machine, None for an unavailable one, and a message if there is one, otherwise ""."""
    gpus: list[Gpu | None] = []
    problem = ""
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            gpus.append(Gpu(pynvml.nvmlDeviceGetUUID(handle), handle, _find_instances(handle)))
        except Exception as error:
            gpus.append(None)
            problem = f"GPU {index} of this machine is unavailable: {format_reason(error)}"
    return gpus, problem


def _find_instances(handle: Any) -> tuple[Gpu, ...]:
    """Return the MIG instances of a GPU; empty if MIG is disabled or not supported."""

    def get_instance(index: int) -> Gpu:
        instance = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        return Gpu(pynvml.nvmlDeviceGetUUID(instance), instance)

    if not _call_supported(lambda: pynvml.nvmlDeviceGetMigMode(handle)[0] == pynvml.NVML_DEVICE_MIG_ENABLE):
        return ()
    indices = range(_call_supported(lambda: pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)) or 0)
    instances = (_call_supported(partial(get_instance, index)) for index in indices)
    return tuple(instance for instance in instances if instance is not None)  # the indices may have gaps
