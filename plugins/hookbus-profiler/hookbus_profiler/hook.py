"""The profiler hook: start and end of the profiling, and its report."""

from __future__ import annotations

from typing import Any

import torch

from hookbus import Hook, Run, hookimpl
from hookbus.distributed import is_main
from hookbus.metrics import get_peak_flops
from hookbus_profiler.config import ProfilerConfig
from hookbus_profiler.output import ProfilerOutput
from hookbus_profiler.profiling_window import ProfilingWindow
from hookbus_profiler.report import Report


class ProfilerHook(Hook):
    """Profile the first iterations of a training: trace some of them and report the time breakdown of the others.

    Profiling starts in `before_train` and ends after `profile_iters` iterations or at the end of the training; later
    iterations have no overhead. The result does not depend on the priority of the hook.

    Attributes:
        report: Report of the run, available from `after_run` to `cleanup`; None if no iteration was profiled.
    """

    Config = ProfilerConfig
    observer = True
    config: ProfilerConfig

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self.report: Report | None = None
        self._window: ProfilingWindow | None = None
        self._output: ProfilerOutput | None = None
        self._epochs = 0

    def check(self, run: Run) -> None:
        """Check that the run has no other profiler, because only one can be active per process.

        Raises:
            ConfigError: If another hook is a profiler.
        """
        self.check_unique(run, "profiles the run, and only one can", "Remove one of them.")

    def before_train(self, run: Run) -> None:
        """Start profiling.

        Raises:
            HookError: If another profiler is active in the process.
        """
        config = self.config
        self.report, self._epochs = None, 0
        self._output = ProfilerOutput(run, config, self.name)
        window = ProfilingWindow(
            f"{self.name}/window",
            config.plan,
            None if config.by_epoch else config.profile_iters,
            _get_device(run),
            counts_flops=config.with_flops,
            options=config.model_dump(include={"record_shapes", "profile_memory", "with_stack"}),
            deliver=self._output.write_cycle,
        )
        window.open(run)
        self._window = window

    @hookimpl(frequency=False)
    def after_train_epoch(self) -> None:
        """Stop profiling after the last profiled epoch if `by_epoch` is true."""
        self._epochs += 1
        if self._window is not None and self.config.by_epoch and self._epochs == self.config.profile_iters:
            self._window.close()

    def after_run(self, run: Run) -> None:
        """Stop profiling and write the report to a file."""
        window, self._window = self._window, None
        if window is None or self._output is None:
            return
        try:
            window.close()
            if is_main() and (message := window.describe_missing_iterations()):
                run.logger.warning("%s: %s", self.name, message)
        finally:
            # Writing a trace may fail on a full disk; the report does not depend on it.
            self.report = self._build_report(window, run)
        if self.report is not None:
            self._output.write_report(self.report)

    def cleanup(self) -> None:
        """Print the report after the output of all other hooks."""
        report, output, self.report, self._output = self.report, self._output, None, None
        if report is not None and output is not None:
            output.print_report(report)

    def _build_report(self, window: ProfilingWindow, run: Run) -> Report | None:
        """Build the report; None if no iteration was profiled. Synchronizes with the device."""
        window.breakdown.finish()
        times, device = window.breakdown.times, _get_device(run)
        if not times.iterations:
            return None
        times.hooks.pop(self.name, None)  # the profiler's own overhead ends with the profiling
        peak = get_peak_flops(torch.cuda.get_device_name(device), "fp16") if device.type == "cuda" else None
        workers = getattr(run.train_loader, "num_workers", None)
        return Report(times, window.flops, peak, workers)


def _get_device(run: Run) -> torch.device:
    """Return the device of the model's first parameter; the CPU if there is none."""
    parameter = None if run.model is None else next(run.model.parameters(), None)
    return torch.device("cpu") if parameter is None else parameter.device
