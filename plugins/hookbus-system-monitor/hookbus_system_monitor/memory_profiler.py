"""The memory profiler: memory of process, system and device, whether it grows, and what filled it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hookbus import Priority, Run, every, hookimpl
from hookbus.distributed import rank
from hookbus.errors import in_one_line
from hookbus_system_monitor.allocator import allocation
from hookbus_system_monitor.cgroup import Cgroup
from hookbus_system_monitor.config import MemoryProfilerConfig
from hookbus_system_monitor.lines import memory_fields, memory_sentence
from hookbus_system_monitor.memory import process_memory, process_peak, swap_memory, system_memory
from hookbus_system_monitor.readings import GB
from hookbus_system_monitor.records import RecordingHook
from hookbus_system_monitor.snapshot import is_out_of_memory, save_snapshot
from hookbus_system_monitor.watch import Watch

__all__ = ["MemoryProfilerHook"]

PROCESS = "the memory of this process"
DEVICE = "the memory of tensors on the device"


class MemoryProfilerHook(RecordingHook):
    """Records memory under `memory/...`, says it in words, and warns of too much and of steady growth.

    Runs on every rank, because each has memory of its own; what is recorded is that of the main one.
    """

    Config = MemoryProfilerConfig
    priority = Priority.HIGHEST
    observer = True
    config: MemoryProfilerConfig

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self._cgroup = Cgroup()
        self._watches: dict[str, Watch] = {}

    # -- when ----------------------------------------------------------------------------------

    def before_train(self) -> None:
        """Begin anew to look for growth."""
        self._watches = {}
        self._forget_records()

    @hookimpl(when=every("interval"))
    def after_train_iter(self, run: Run) -> None:
        """Record, at the interval of the config."""
        super().after_train_iter(run)

    def after_train(self, run: Run) -> None:
        """Say how much it was at most; a short training has no record."""
        found = allocation() if self.config.log_gpu else None
        most = {PROCESS: process_peak(process_memory())} if self.config.log_cpu else {}
        most |= {DEVICE: found.peak} if found is not None else {}
        for what, size in most.items():
            run.logger.info("%s: %s was at most %.2f GB.", self.name, what, size / GB)

    def on_exception(self, run: Run, exception: BaseException) -> None:
        """Keep what can be known of an out-of-memory error."""
        if is_out_of_memory(exception):
            self._dump(run, exception)

    # -- what ----------------------------------------------------------------------------------

    def values(self, run: Run) -> dict[str, float]:
        """The memory of the host and of the device, which are told in words as well."""
        return {**self._of_host(run), **self._of_device(run)}

    def _of_host(self, run: Run) -> dict[str, float]:
        if not self.config.log_cpu:
            return {}
        memory, swap, process = system_memory(self._cgroup), swap_memory(self._cgroup), process_memory()
        run.logger.info("%s", memory_sentence(memory, swap, process))
        run.logger.info("%s", memory_fields(memory, swap, process))
        self._look_at(run, PROCESS, process)
        return {
            "memory/process_gb": process / GB,
            "memory/process_peak_gb": process_peak(process) / GB,
            "memory/system_used_gb": memory.used / GB,
            "memory/system_available_gb": memory.available / GB,
            "memory/system_percent": memory.percent,
            "memory/swap_used_gb": swap.used / GB,
            "memory/swap_percent": swap.percent,
        }

    def _of_device(self, run: Run) -> dict[str, float]:
        found = allocation() if self.config.log_gpu else None
        if found is None:
            return {}
        self._look_at(run, DEVICE, found.current)
        return {
            "memory/gpu_allocated_gb": found.current / GB,
            "memory/gpu_peak_gb": found.peak / GB,
            "memory/gpu_reserved_gb": found.reserved / GB,
            "memory/gpu_fragmentation_percent": found.fragmentation,
        }

    def _look_at(self, run: Run, what: str, size: int) -> None:
        watch = self._watches.setdefault(what, Watch(what, self.config.warn_threshold))
        for text in watch.see(run.iters_done, size):
            run.logger.warning("%s: %s", self.name, text)

    # -- out of memory -------------------------------------------------------------------------

    def _dump(self, run: Run, error: BaseException) -> None:
        directory = run.get("logs_dir")
        if directory is None:
            run.logger.warning("%s: out of memory; give work_dir to the run for a snapshot of it.", self.name)
            return
        files = save_snapshot(Path(directory), rank(), self._facts(run, error))
        run.logger.warning("%s: out of memory; a snapshot is in %s.", self.name, " and ".join(map(str, files)))

    def _facts(self, run: Run, error: BaseException) -> dict[str, Any]:
        found, process = allocation(), process_memory()
        return {
            "error": in_one_line(error),
            "epoch": run.epoch,
            "iteration": run.iters_done,
            "step": run.steps_done,
            "process": process,
            "process_peak": process_peak(process),
            "system": system_memory(self._cgroup)._asdict(),
            "swap": swap_memory(self._cgroup)._asdict(),
            "device": None if found is None else found._asdict(),
        }
