"""The profiler hook: when profiling begins and ends, and what is made of it."""

from __future__ import annotations

from typing import Any

import torch

from hookbus import Hook, Run
from hookbus_profiler.config import ProfilerConfig
from hookbus_profiler.flops import peak_of
from hookbus_profiler.output import Output
from hookbus_profiler.report import Report
from hookbus_profiler.window import Window

__all__ = ["ProfilerHook"]


class ProfilerHook(Hook):
    """Profiles the first iterations of a training: traces some of them, and says where the time of the others goes.

    Profiling begins with `before_train` and ends after `profile_iters` iterations, or with the training; from then on
    nothing is measured, and nothing is paid. Its place among the hooks makes no difference.

    Attributes:
        report: what was found, from `after_run` to `cleanup`; None where no iteration was profiled.
    """

    Config = ProfilerConfig
    observer = True
    config: ProfilerConfig

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self.report: Report | None = None
        self._window: Window | None = None
        self._output: Output | None = None
        self._epochs = 0

    def before_train(self, run: Run) -> None:
        """Begin.

        Raises:
            HookError: another profiler is on.
        """
        config = self.config
        self.report, self._epochs = None, 0
        self._output = Output(run, config, self.name)
        window = Window(
            f"{self.name}/window",
            config.plan,
            None if config.by_epoch else config.profile_iters,
            _device_of(run),
            counts_flops=config.with_flops,
            options=config.model_dump(include={"record_shapes", "profile_memory", "with_stack"}),
            deliver=self._output.deliver,
        )
        window.open(run.bus)
        self._window = window

    def after_train_epoch(self) -> None:
        """An epoch is done; it may be the last one that is profiled."""
        self._epochs += 1
        if self._window is not None and self.config.by_epoch and self._epochs == self.config.profile_iters:
            self._window.close()

    def after_run(self, run: Run) -> None:
        """End, if that was not done, and keep the report as a file."""
        window, self._window = self._window, None
        if window is None or self._output is None:
            return
        try:
            window.close()
        finally:
            self.report = self._report_of(window, run)
        if self.report is not None:
            self._output.keep(self.report)

    def cleanup(self) -> None:
        """Print the report, after everyone else has said the last word."""
        report, output, self.report, self._output = self.report, self._output, None, None
        if report is not None and output is not None:
            output.show(report)

    def _report_of(self, window: Window, run: Run) -> Report | None:
        """What was found; here the device may be waited for."""
        window.split.finish()
        times, device = window.split.times, _device_of(run)
        if not times.iterations:
            return None
        times.hooks.pop(self.name, None)  # what it costs to look is over when the report is read
        peak = peak_of(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
        workers = getattr(run.train_loader, "num_workers", None)
        return Report(times, window.flops, peak, workers)


def _device_of(run: Run) -> torch.device:
    """Where the model is."""
    parameter = None if run.model is None else next(run.model.parameters(), None)
    return torch.device("cpu") if parameter is None else parameter.device
