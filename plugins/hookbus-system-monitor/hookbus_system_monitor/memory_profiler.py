"""The memory profiler: memory of process, system and device, leak detection and out-of-memory snapshots."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch

from hookbus import Priority, Run, every, hookimpl
from hookbus.checkpoint import write_json
from hookbus.distributed import rank
from hookbus.errors import format_error, format_path
from hookbus.writers import OutputFiles
from hookbus_system_monitor.cgroup import Cgroup
from hookbus_system_monitor.config import MemoryProfilerConfig
from hookbus_system_monitor.deferred_records import MonitorHook
from hookbus_system_monitor.devices import get_allocation
from hookbus_system_monitor.memory import (
    Memory,
    ThresholdWatch,
    format_memory,
    get_process_memory,
    get_process_peak,
    get_swap_memory,
    get_system_memory,
)
from hookbus_system_monitor.readings import GB

OUT_OF_MEMORY_MESSAGES = ("can't allocate memory", "out of memory")
PROCESS_LABEL = "process memory"
DEVICE_LABEL = "tensor memory on the device"
SYSTEM_LABEL = "system memory"
SWAP_LABEL = "swap memory"

T = TypeVar("T")


class MemoryProfilerHook(MonitorHook):
    """Log memory under `memory/...`, and warn if it exceeds a threshold or grows steadily.

    Runs on every rank, because each rank has its own memory; the values of rank 0 are logged.
    """

    Config = MemoryProfilerConfig
    priority = Priority.HIGHEST
    observer = True
    config: MemoryProfilerConfig

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self._cgroup = Cgroup()
        self._output: OutputFiles | None = None
        self._watches: dict[str, ThresholdWatch] = {}

    def check(self, run: Run) -> None:
        """Check that no other hook logs the same values.

        Raises:
            ConfigError: If another hook logs the memory of the host or of the device as well.
        """
        self.check_settings(run, ("log_cpu", "log_gpu"))

    # -- events --------------------------------------------------------------------------------

    def before_train(self, run: Run) -> None:
        """Reset the leak detection, and determine the directory of snapshots."""
        directory = run.get("logs_dir")
        self._output = (
            None if directory is None else OutputFiles(run, Path(directory), "snapshots of the device memory")
        )
        self._watches = {}
        self._reset_records()

    @hookimpl(when=every("interval"))
    def after_train_iter(self, run: Run) -> None:
        """Log the memory every `interval` iterations."""
        super().after_train_iter(run)

    def after_train(self, run: Run) -> None:
        """Log the peak memory, also for a short training without records."""
        peaks = {}
        if self.config.log_cpu and (process := self._read(PROCESS_LABEL, get_process_memory)) is not None:
            peaks[PROCESS_LABEL] = get_process_peak(process)
        if self.config.log_gpu and (device := self._read(DEVICE_LABEL, get_allocation)) is not None:
            peaks[DEVICE_LABEL] = device.peak
        for label, size in peaks.items():
            run.logger.info("%s: %s peaked at %.2f GB.", self.name, label, size / GB)

    def on_exception(self, run: Run, exception: BaseException) -> None:
        """Save a snapshot after an out-of-memory error."""
        if is_out_of_memory(exception):
            self._save_snapshot(run, exception)

    # -- values --------------------------------------------------------------------------------

    def collect_values(self, run: Run) -> dict[str, float]:
        """Return the memory of host and device, and log that of the host as text."""
        return {**self._collect_host(run), **self._collect_device(run)}

    def _read_host(self) -> tuple[Memory | None, Memory | None, int | None]:
        """Return the memory of the system, swap, and the memory of the process; None for an unavailable one."""
        return (
            self._read(SYSTEM_LABEL, lambda: get_system_memory(self._cgroup)),
            self._read(SWAP_LABEL, lambda: get_swap_memory(self._cgroup)),
            self._read(PROCESS_LABEL, get_process_memory),
        )

    def _collect_host(self, run: Run) -> dict[str, float]:
        if not self.config.log_cpu:
            return {}
        memory, swap, process = self._read_host()
        if memory is not None and swap is not None and process is not None:
            for line in format_memory(memory, swap, process):
                run.logger.info("%s", line)
        if process is not None:
            self._check_size(run, PROCESS_LABEL, process)
        return _name_host_values(memory, swap, process)

    def _collect_device(self, run: Run) -> dict[str, float]:
        device = self._read(DEVICE_LABEL, get_allocation) if self.config.log_gpu else None
        if device is None:
            return {}
        self._check_size(run, DEVICE_LABEL, device.current)
        return {
            "memory/gpu_allocated_gb": device.current / GB,
            "memory/gpu_peak_gb": device.peak / GB,
            "memory/gpu_reserved_gb": device.reserved / GB,
            "memory/gpu_fragmentation_percent": device.fragmentation,
        }

    def _read(self, label: str, read: Callable[[], T]) -> T | None:
        """Return the result of a function; None, with one warning per label, if it fails."""
        return self._reader.call(label, read, None)

    def _check_size(self, run: Run, label: str, size: int) -> None:
        watch = self._watches.setdefault(label, ThresholdWatch(label, self.config.warn_threshold))
        for text in watch.update(run.iters_done, size):
            run.logger.warning("%s: %s", self.name, text)

    # -- out of memory -------------------------------------------------------------------------

    def _save_snapshot(self, run: Run, error: BaseException) -> None:
        if self._output is None:
            run.logger.warning(
                "%s: out of memory, and the run has no work directory for a snapshot. Set `work_dir`.", self.name
            )
            return
        files = save_snapshot(self._output, rank(), self._collect_usage(run, error))
        run.logger.warning("%s: out of memory. Snapshot saved to %s.", self.name, " and ".join(map(format_path, files)))

    def _collect_usage(self, run: Run, error: BaseException) -> dict[str, Any]:
        memory, swap, process = self._read_host()
        device = self._read(DEVICE_LABEL, get_allocation)
        return {
            "error": format_error(error),
            "epoch": run.epoch,
            "iteration": run.iters_done,
            "step": run.steps_done,
            "process": process,
            "process_peak": None if process is None else get_process_peak(process),
            "system": memory and memory._asdict(),
            "swap": swap and swap._asdict(),
            "device": device and device._asdict(),
        }


def _name_host_values(memory: Memory | None, swap: Memory | None, process: int | None) -> dict[str, float]:
    """Return the values of the host by name, without the unavailable ones."""
    values: dict[str, float] = {}
    if process is not None:
        values |= {"memory/process_gb": process / GB, "memory/process_peak_gb": get_process_peak(process) / GB}
    if memory is not None:
        values |= {
            "memory/system_used_gb": memory.used / GB,
            "memory/system_available_gb": memory.available / GB,
            "memory/system_percent": memory.percent,
        }
    if swap is not None:
        values |= {"memory/swap_used_gb": swap.used / GB, "memory/swap_percent": swap.percent}
    return values


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return whether an exception means that a device or the host is out of memory."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    # The CPU allocator and drivers raise a plain RuntimeError, which only its message identifies.
    return isinstance(error, RuntimeError) and any(text in str(error) for text in OUT_OF_MEMORY_MESSAGES)


def save_snapshot(output: OutputFiles, rank: int, contents: Mapping[str, Any]) -> list[Path]:
    """Write `out_of_memory_rank<rank>.json` and, if CUDA is in use, the allocator's blocks as `.pickle`.

    Returns:
        Paths of the files. The pickle can be opened in https://pytorch.org/memory_viz.

    Raises:
        OSError: If a file cannot be written.
    """
    name = f"out_of_memory_rank{rank}"
    paths = [output.create(f"{name}.json", lambda path: write_json(path, dict(contents)))]
    if torch.cuda.is_initialized():
        paths.append(output.create(f"{name}.pickle", lambda path: torch.cuda.memory._dump_snapshot(str(path))))
    return paths
