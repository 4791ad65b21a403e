"""The system monitor: utilization of CPU, memory, disk, network and GPUs, and plots of it over time."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hookbus import Priority, Run
from hookbus.errors import ConfigError, format_path
from hookbus.writers import OutputFiles
from hookbus_system_monitor.cgroup import Cgroup
from hookbus_system_monitor.config import SystemMonitorConfig
from hookbus_system_monitor.deferred_records import MonitorHook
from hookbus_system_monitor.devices import AcceleratorProvider, Provider, get_cuda_uuids
from hookbus_system_monitor.host import build_cpu_probes, build_disk_probes, build_memory_probes, build_network_probes
from hookbus_system_monitor.nvml import NvmlProvider
from hookbus_system_monitor.readings import Probe, Values
from hookbus_system_monitor.samples import Sampler, Samples
from hookbus_system_monitor.visible_devices import get_process_devices

UNIT_LABELS = {
    "percent": "%",
    "gb": "GB",
    "mb_per_s": "MB/s",
    "celsius": "°C",
    "watts": "W",
    "mhz": "MHz",
    "joules": "J",
}
"""Suffixes of names and the labels of their units, in the order of the panels."""

PANEL_SIZE_INCHES = (10.0, 2.5)


class SystemMonitorHook(MonitorHook):
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
        self._probes: list[Probe] = []
        self._providers: Sequence[Provider] = ()
        self._start_time = 0.0

    def check(self, run: Run) -> None:
        """Check that no other hook logs the same values, and that plots can be saved.

        Raises:
            ConfigError: If another hook tracks the same component or saves plots as well, or if `show_plots` is set
                without a work directory or without matplotlib.
        """
        # The names of these values and plots do not contain the name of the hook.
        self.check_settings(run, [*SystemMonitorConfig.tracked_settings(), "show_plots"])
        if self.config.show_plots and (problem := plot_error(run.get("visualization_dir"))):
            raise ConfigError([problem])

    # -- the thread ----------------------------------------------------------------------------

    def before_run(self, run: Run) -> None:
        """Start sampling."""
        self.cleanup()
        self._samples = Samples()
        self._reset_records()
        self._probes, self._providers = self._build_host_probes(run), self.build_providers()
        self._start_time = time.monotonic()
        self._sampler = Sampler(self._sample, self.config.interval, name=self.name, warn=self._log_warning)
        self._sampler.start()

    def after_run(self, run: Run) -> None:
        """Stop the thread and save the plots."""
        self.cleanup()
        seconds, values = self._samples.history()
        if self.config.show_plots and values:
            files = OutputFiles(run, run.require("visualization_dir"), "plots of the system metrics")
            path = files.create(f"system_{run.mode}.png", lambda path: save_plots(path, seconds, values))
            self._log_info(f"plots saved to {format_path(path)}.")

    def cleanup(self) -> None:
        """Stop the thread and release the devices."""
        sampler, self._sampler = self._sampler, None
        # A thread that did not end may still use the providers, so they are not closed.
        if sampler is not None and sampler.stop():
            for provider in self._providers:
                provider.close()
            self._probes, self._providers = [], ()

    def build_providers(self) -> Sequence[Provider]:
        """Return the providers of device metrics. Override for devices of other vendors."""
        use, memory = self.config.track_gpu, self.config.track_gpu_memory
        if not use and not memory:
            return []
        entries = get_process_devices(os.environ.get("CUDA_VISIBLE_DEVICES"), get_cuda_uuids())
        nvml = NvmlProvider(
            entries, use=use, memory=memory, reader=self._reader, info=self._log_info, warn=self._log_warning
        )
        return [nvml, AcceleratorProvider(self._reader)] if memory else [nvml]

    def _sample(self) -> None:
        values: Values = {}
        for probe in self._probes:
            values |= self._reader.read(probe)
        for provider in self._providers:
            values |= self._reader.call(f"provider {type(provider).__name__}", provider.read, Values())
        named = {f"system/{name}": value for name, value in values.items()}
        self._samples.add(time.monotonic() - self._start_time, named)

    def _build_host_probes(self, run: Run) -> list[Probe]:
        config, cgroup, path = self.config, Cgroup(), Path(run.get("experiment_dir") or Path.cwd())
        return [
            *(build_cpu_probes(cgroup) if config.track_cpu else ()),
            *(build_memory_probes(cgroup) if config.track_memory else ()),
            *(build_disk_probes(path) if config.track_disk else ()),
            *(build_network_probes() if config.track_network else ()),
        ]

    # -- records -------------------------------------------------------------------------------

    def collect_values(self, run: Run) -> dict[str, float]:
        """Return the means of the samples since the last record."""
        return self._samples.take()

    def after_train(self, run: Run) -> None:
        """Log the samples since the last record."""
        self._record(run)

    after_test = after_predict = after_train

    def _log_info(self, text: str) -> None:
        self.run.logger.info("%s: %s", self.name, text)


def plot_error(directory: Path | None) -> str | None:
    """Return why plots cannot be saved, otherwise None."""
    if find_spec("matplotlib") is None:
        return 'show_plots: requires matplotlib, got none. Run: pip install "hookbus-system-monitor[plots]"'
    if directory is None:
        return "show_plots: requires a work directory, got none. Set `work_dir`, or `show_plots: false`."
    return None


def group_by_unit(names: Sequence[str]) -> dict[str, list[str]]:
    """Group names by unit, in the order of `UNIT_LABELS`."""
    panels = {unit: [name for name in names if name.endswith(end)] for end, unit in UNIT_LABELS.items()}
    return {unit: members for unit, members in panels.items() if members}


def save_plots(path: Path, seconds: Sequence[float], history: Mapping[str, Sequence[float | None]]) -> None:
    """Save the plots of all values to one PNG file, with one panel per unit.

    Args:
        path: Path of the file; its directory must exist.
        seconds: Times of the samples, in seconds.
        history: Values by name, one per time; None interrupts the line.
    """
    # Not pyplot, whose global state and backend belong to the user's script.
    from matplotlib.figure import Figure

    panels = group_by_unit(list(history))
    width, height = PANEL_SIZE_INCHES
    figure = Figure(figsize=(width, height * len(panels)), layout="constrained")
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for axis, (unit, names) in zip(axes, panels.items(), strict=True):
        for name in names:
            axis.plot(seconds, [float("nan") if value is None else value for value in history[name]], label=name)
        axis.set_ylabel(unit)
        axis.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize="small", frameon=False)
    axes[-1].set_xlabel("seconds")
    figure.savefig(path)
