"""The profiler hook: when profiling begins and ends, and where its results go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from hookbus import Hook, Run
from hookbus.distributed import is_main, rank
from hookbus.files import commit
from hookbus_profiler.config import ProfilerConfig
from hookbus_profiler.flops import peak_of
from hookbus_profiler.report import Report
from hookbus_profiler.session import Cycle
from hookbus_profiler.traces import Traces, operators
from hookbus_profiler.window import Window

__all__ = ["ProfilerHook"]


class ProfilerHook(Hook):
    """Profiles the first iterations of a training: traces some of them, and says where the time of the others goes.

    Profiling begins with `before_train` and ends after `profile_iters` iterations, or with the training; from then on
    nothing is measured. Its place among the hooks makes no difference.
    """

    Config = ProfilerConfig
    observer = True
    config: ProfilerConfig

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self._window: Window | None = None
        self._traces: Traces | None = None
        self._epochs = 0
        self.report: Report | None = None

    # -- beginning and end ---------------------------------------------------------------------

    def before_train(self, run: Run) -> None:
        """Begin.

        Raises:
            HookError: another profiler is on.
        """
        self.report, self._epochs = None, 0
        self._traces = self._traces_of(run)
        self._window = Window(
            run.bus,
            self.config.plan,
            _device_of(run),
            counts_flops=self.config.with_flops,
            options=self.config.model_dump(include={"record_shapes", "profile_memory", "with_stack"}),
            deliver=self._deliver,
        )

    def after_train_epoch(self, run: Run) -> None:
        """An epoch is done; it may be the last one that is profiled."""
        self._epochs += 1
        if self.config.by_epoch and self._epochs == self.config.profile_iters:
            self._end(run)

    def after_run(self, run: Run) -> None:
        """End, if that was not done, and keep the report as a file."""
        self._end(run)
        directory = run.get("experiment_dir")
        if self.report is not None and directory is not None and is_main():
            text = self.report.text().encode()
            commit(Path(directory) / "profiler" / "report.txt", lambda file: file.write(text))

    def cleanup(self, run: Run) -> None:
        """Print the report, after everyone else has said the last word."""
        self._end(run)
        report, self.report = self.report, None
        if report is not None and is_main():
            (run.get("console") or Console(highlight=False)).print(report)

    # -- the points of an iteration ------------------------------------------------------------

    def before_train_iter(self) -> None:
        """The batch is there."""
        if self._window is not None:
            self._window.begin_iteration()

    def after_train_iter(self, run: Run) -> None:
        """The iteration is done; it may be the last one that is profiled."""
        if self._window is None:
            return
        is_last = not self.config.by_epoch and self._window.iterations + 1 == self.config.profile_iters
        self._window.end_iteration(is_last=is_last)
        if is_last:
            self._end(run)

    def before_train_epoch(self) -> None:
        """From here on data is fetched."""
        self._mark("before_train_epoch")

    def after_forward(self) -> None:
        """The loss is there."""
        self._mark("after_forward")

    def after_backward(self) -> None:
        """The gradients are there."""
        self._mark("after_backward")

    def before_optimizer_step(self) -> None:
        """The update begins."""
        self._mark("before_optimizer_step")

    def after_optimizer_step(self) -> None:
        """The update is done."""
        self._mark("after_optimizer_step")

    def before_val(self) -> None:
        """What follows is no part of an iteration."""
        self._mark("before_val")

    def after_val(self) -> None:
        """Training goes on."""
        self._mark("after_val")

    def _mark(self, point: str) -> None:
        if self._window is not None:
            self._window.mark(point)

    # -- results -------------------------------------------------------------------------------

    def _end(self, run: Run) -> None:
        window, self._window = self._window, None
        if window is None:
            return
        try:
            window.close()
        finally:
            times = window.split.times
            times.hooks.pop(self.name, None)  # what it costs to look is over when the report is read
            if times.iterations:
                is_traced, workers = times is window.split.traced, getattr(run.train_loader, "num_workers", None)
                self.report = Report(times, is_traced, window.flops, _peak_of(_device_of(run)), workers)

    def _deliver(self, cycle: Cycle, number: int) -> None:
        """A cycle was recorded: write it, and hand it to who wants it."""
        run = self.run
        if self._traces is not None:
            problem = self._traces.write(cycle.profile, f"rank{rank()}-cycle{number}-iteration{run.iters_done}")
            if problem is not None:
                run.logger.warning("%s: %s", self.name, problem)
        else:
            run.logger.info("%s: the most expensive operators\n%s", self.name, operators(cycle.profile))
        if self.config.on_trace_ready is not None:
            self.config.on_trace_ready(cycle.profile)

    def _traces_of(self, run: Run) -> Traces | None:
        """Where traces go; None in a run that writes no files."""
        directory = run.get("experiment_dir")
        if directory is None:
            return None
        run.own(Path(directory) / "profiler")
        suffix = ".pt.trace.json.gz" if self.config.export_tensorboard else ".json.gz"
        wanted = self.config.export_chrome_trace or self.config.export_tensorboard
        return Traces(Path(directory) / "profiler", suffix if wanted else None, self.config.max_megabytes * 1e6)


def _device_of(run: Run) -> torch.device:
    """Where the model is."""
    parameter = None if run.model is None else next(run.model.parameters(), None)
    return torch.device("cpu") if parameter is None else parameter.device


def _peak_of(device: torch.device) -> float | None:
    return peak_of(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
