"""The system monitor: utilization of CPU, memory, disk, network and GPUs."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hookbus import Priority, Run
from hookbus_system_monitor.cgroup import Cgroup
from hookbus_system_monitor.config import SystemMonitorConfig
from hookbus_system_monitor.devices import AcceleratorProvider, NullProvider, Provider, cuda_uuids
from hookbus_system_monitor.host import cpu_probes, disk_probes, memory_probes, network_probes
from hookbus_system_monitor.nvml import NvmlProvider
from hookbus_system_monitor.plots import save_plots, why_no_plots
from hookbus_system_monitor.readings import Probe, Reader, Values
from hookbus_system_monitor.records import RecordingHook
from hookbus_system_monitor.sampler import Sampler
from hookbus_system_monitor.samples import Samples
from hookbus_system_monitor.visible import entries_of

__all__ = ["SystemMonitorHook"]


class SystemMonitorHook(RecordingHook):
    """Sample the machine in a separate thread, and log the means under `system/...`.

    The thread runs from the start to the end of the run, also if the run fails. It emits no events: the training thread
    logs the records, and only if there are new samples.
    """

    Config = SystemMonitorConfig
    priority = Priority.HIGHEST
    observer = True
    ranks = "main"
    config: SystemMonitorConfig

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self._samples = Samples()
        self._sampler: Sampler | None = None
        self._reader = Reader(self._warn)
        self._probes: list[Probe] = []
        self._providers: Sequence[Provider] = ()
        self._began = 0.0

    # -- the thread ----------------------------------------------------------------------------

    def before_run(self, run: Run) -> None:
        """Start sampling."""
        self.cleanup()
        self._samples, self._reader = Samples(), Reader(self._warn)
        self._forget_records()
        self._probes, self._providers = self._host_probes(run), self.providers()
        self._began = time.monotonic()
        self._sampler = Sampler(self._sample, self.config.interval, name=self.name, warn=self._warn)
        self._sampler.start()
        # Before training, so that the user can fix it before the run ends without plots.
        if self.config.show_plots and (problem := why_no_plots(run.get("visualization_dir"))):
            self._warn(problem)

    def after_run(self, run: Run) -> None:
        """Stop the thread and save the plots."""
        self.cleanup()
        if self.config.show_plots:
            self._draw(run)

    def cleanup(self) -> None:
        """Stop the thread and release the devices."""
        sampler, self._sampler = self._sampler, None
        # A thread that did not end may still use the providers, so they are not closed.
        if sampler is not None and sampler.stop():
            for provider in self._providers:
                provider.close()

    def providers(self) -> Sequence[Provider]:
        """Return the providers of device metrics. Override for devices of other vendors."""
        use, memory = self.config.track_gpu, self.config.track_gpu_memory
        if not use and not memory:
            return [NullProvider()]
        entries = entries_of(os.environ.get("CUDA_VISIBLE_DEVICES"), cuda_uuids())
        nvml = NvmlProvider(entries, use=use, memory=memory, reader=self._reader, info=self._tell, warn=self._warn)
        return [nvml, AcceleratorProvider()] if memory else [nvml]

    def _sample(self) -> None:
        values: Values = {}
        for probe in self._probes:
            values |= self._reader.read(probe)
        for provider in self._providers:
            values |= self._reader.attempt(f"provider {type(provider).__name__}", provider.read, {})
        named = {f"system/{name}": value for name, value in values.items()}
        self._samples.add(time.monotonic() - self._began, named)

    def _host_probes(self, run: Run) -> list[Probe]:
        config, cgroup, path = self.config, Cgroup(), Path(run.get("experiment_dir") or Path.cwd())
        return [
            *(cpu_probes(cgroup) if config.track_cpu else ()),
            *(memory_probes(cgroup) if config.track_memory else ()),
            *(disk_probes(path) if config.track_disk else ()),
            *(network_probes() if config.track_network else ()),
        ]

    # -- records -------------------------------------------------------------------------------

    def values(self, run: Run) -> dict[str, float]:
        """Return the means of the samples since the last record."""
        return self._samples.take()

    def after_train(self, run: Run) -> None:
        """Log the samples since the last record."""
        self._record(run)

    after_test = after_train

    # -- plots ---------------------------------------------------------------------------------

    def _draw(self, run: Run) -> None:
        directory = run.get("visualization_dir")
        seconds, values = self._samples.course()
        if values and why_no_plots(directory) is None:
            path = Path(directory) / f"system_{run.mode}.png"
            run.own(path)
            save_plots(path, seconds, values)
            self._tell(f"plots saved to {path}.")

    # -- messages ------------------------------------------------------------------------------

    def _warn(self, text: str) -> None:
        self.run.logger.warning("%s: %s", self.name, text)

    def _tell(self, text: str) -> None:
        self.run.logger.info("%s: %s", self.name, text)
