"""NVIDIA GPUs through the driver's own library, NVML.

Every number stands alone: one that a GPU does not know is None, and the others are there. A driver that goes away, a
GPU that is lost and a library that is missing are no errors: there are no values as long as that lasts, and NVML is
opened anew after 1, 2, 4, ... up to 16 readings.

Usable without hookbus.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import pynvml

from hookbus_system_monitor.readings import GB, Probe, Reader, Total, Values
from hookbus_system_monitor.visible import Entry, Gpu, pick

__all__ = ["NvmlProvider"]

MOST_READINGS_APART = 16

GONE = tuple(
    pynvml.nvmlExceptionClass(code)
    for code in (
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
        pynvml.NVML_ERROR_GPU_IS_LOST,
        pynvml.NVML_ERROR_RESET_REQUIRED,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    )
)
"""What does not concern one number, but the GPU or the driver: what was opened is of no use any more."""


class NvmlProvider:
    """Use, memory, temperature, power, clocks and energy of the GPUs of this process.

    Args:
        entries: the devices of this process, see `visible_entries`; None for all.
        use: whether everything but memory is read.
        memory: whether memory is read.
        reader: says once of each number that it cannot be read.
        tell: takes a sentence for people: there is no driver from the start, or it is back.
        warn: takes a sentence for people: something that was there is gone.
    """

    def __init__(
        self,
        entries: Sequence[Entry] | None,
        *,
        use: bool = True,
        memory: bool = True,
        reader: Reader,
        tell: Callable[[str], None],
        warn: Callable[[str], None],
    ) -> None:
        self._entries, self._use, self._memory = entries, use, memory
        self._reader, self._tell, self._warn = reader, tell, warn
        self._probes: dict[int, list[Probe]] = {}
        self._energy: dict[int, Total] = {}
        self._names: Values = {}
        self._is_open = False
        self._trouble = ""
        self._pause = _Pause()

    def read(self) -> Values:
        """The numbers of every device, `gpu<index>/...`; None for what cannot be had now."""
        trouble, tries = self._trouble, True
        if trouble or not self._is_open:
            tries = self._pause.is_over()
            trouble = self._open() if tries else trouble
        found, lost = self._read_devices()
        self._names |= dict.fromkeys(found)
        if tries:
            self._settle(trouble or lost)
        return self._names | found

    def close(self) -> None:
        """Give the library back. May be called twice."""
        if self._is_open:
            with suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()
        self._is_open, self._probes = False, {}

    # -- what is gone, and comes back ----------------------------------------------------------

    def _open(self) -> str:
        """Open the library and look for the devices; returns what is wrong."""
        self.close()
        try:
            pynvml.nvmlInit()
            self._is_open = True
            gpus, trouble = _gpus()
        except pynvml.NVMLError as error:
            return f"no NVIDIA driver answers ({error})"
        chosen = pick(self._entries, gpus)
        self._probes = {index: self._probes_of(index, gpu) for index, gpu in chosen.items()}
        return trouble if self._entries is None or len(chosen) < len(self._entries) else ""

    def _settle(self, trouble: str) -> None:
        """After an attempt: when to try again, and a word about what has changed."""
        self._pause.note(failed=bool(trouble))
        if trouble and not self._trouble:
            say = self._warn if self._names else self._tell
            say(f"{trouble}: there are no values of it as long as that lasts.")
        elif self._trouble and not trouble:
            number = len(self._probes)
            self._tell(f"the NVIDIA driver answers again, for {number} GPU{'' if number == 1 else 's'}.")
        self._trouble = trouble

    # -- what is read --------------------------------------------------------------------------

    def _read_devices(self) -> tuple[Values, str]:
        """What the devices say, and then which of them is lost."""
        found: Values = {}
        lost = ""
        for index, probes in self._probes.items():
            try:
                for probe in probes:
                    found |= self._reader.read(probe, passes_on=GONE)
            except GONE as error:
                found |= {name: None for probe in probes for name in probe.names}
                lost = f"GPU {index} does not answer ({error})"
        return found, lost

    def _probes_of(self, index: int, gpu: Gpu) -> list[Probe]:
        total = self._energy.setdefault(index, Total())
        probes = (_use_of(gpu.handle, total) if self._use else []) + (_memory_of(gpu.handle) if self._memory else [])
        return [
            Probe(f"{each.what} of GPU {index} ({gpu.uuid})", tuple(f"gpu{index}/{n}" for n in each.names), each.read)
            for each in probes
        ]


class _Pause:
    """How many readings to wait before the next attempt: twice as many after each that fails."""

    def __init__(self) -> None:
        self._left, self._length = 0, 1

    def is_over(self) -> bool:
        """Whether this reading makes an attempt; if not, one less is left to wait for."""
        if self._left:
            self._left -= 1
            return False
        return True

    def note(self, *, failed: bool) -> None:
        """An attempt was made."""
        self._left = self._length if failed else 0
        self._length = min(2 * self._length, MOST_READINGS_APART) if failed else 1


def _use_of(handle: Any, energy: Total) -> list[Probe]:
    clock = partial(pynvml.nvmlDeviceGetClockInfo, handle)
    return [
        Probe("use", ("percent",), lambda: (pynvml.nvmlDeviceGetUtilizationRates(handle).gpu,)),
        Probe("temperature", ("celsius",), lambda: (_celsius(handle),)),
        Probe("power", ("watts",), lambda: (pynvml.nvmlDeviceGetPowerUsage(handle) / 1000,)),
        Probe("clock", ("sm_mhz",), lambda: (clock(pynvml.NVML_CLOCK_SM),)),
        Probe("memory clock", ("memory_mhz",), lambda: (clock(pynvml.NVML_CLOCK_MEM),)),
        Probe("energy", ("joules",), lambda: (energy.since_start(_joules(handle)),)),
    ]


def _memory_of(handle: Any) -> list[Probe]:
    def read() -> Sequence[float]:
        memory = _memory_info(handle)
        return memory.used / GB, 100 * memory.used / memory.total

    return [Probe("memory", ("memory_used_gb", "memory_percent"), read)]


def _memory_info(handle: Any) -> Any:
    """The newer call tells what is used from what the driver reserves; older drivers only have their sum."""
    try:
        return pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    except GONE:
        raise
    except pynvml.NVMLError:
        return pynvml.nvmlDeviceGetMemoryInfo(handle)


def _celsius(handle: Any) -> float:
    return float(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU))


def _joules(handle: Any) -> float:
    return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1000


def _gpus() -> tuple[list[Gpu | None], str]:
    """The GPUs of the machine, None for one that does not answer, and then what is wrong."""
    gpus: list[Gpu | None] = []
    trouble = ""
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            gpus.append(Gpu(pynvml.nvmlDeviceGetUUID(handle), handle, _parts(handle)))
        except pynvml.NVMLError as error:
            gpus.append(None)
            trouble = f"GPU {index} of this machine does not answer ({error})"
    return gpus, trouble


def _parts(handle: Any) -> tuple[Gpu, ...]:
    """The MIG instances of a GPU; none where it is not divided, or cannot be."""
    try:
        if pynvml.nvmlDeviceGetMigMode(handle)[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
            return ()
        places = range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle))
    except GONE:
        raise
    except pynvml.NVMLError:
        return ()
    return tuple(part for place in places if (part := _part(handle, place)) is not None)


def _part(handle: Any, place: int) -> Gpu | None:
    try:
        part = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)
    except pynvml.NVMLError:  # instances may have places with gaps between them
        return None
    return Gpu(pynvml.nvmlDeviceGetUUID(part), part)
