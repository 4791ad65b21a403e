"""The progress hook: a bar in a terminal, periodic plain lines otherwise."""

from __future__ import annotations

import operator
import time
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

from rich.console import Console, RenderableType
from rich.live import Live

from hookbus import Hook, Priority, Run, every, hookimpl
from hookbus.metrics import Metrics
from hookbus_logger.config import ProgressConfig
from hookbus_logger.console import get_console, print_line
from hookbus_logger.format import format_clock_time, format_count
from hookbus_logger.progress_bar import ProgressState, ThroughputMeter, Ticker, build_bar, format_line

INDENT = " " * 7
"""Indentation of plain lines, aligned with the position in the lines of `LoggerHook`."""


class ProgressHook(Hook):
    """Display progress, throughput and remaining time.

    A separate thread reads the run's clock and renders the progress, so the hook adds no work to an iteration.
    """

    Config = ProgressConfig
    priority = Priority.NORMAL
    observer = True
    ranks = "main"
    config: ProgressConfig
    _loss: float | None
    _loader: tuple[str, str | None, int | None] | None

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self._resources = ExitStack()
        self._reset()

    def before_run(self, run: Run, mode: str) -> None:
        """Start displaying the progress."""
        self.cleanup()
        self._reset()
        if mode == "train":
            run.metrics.window(self.name)
        self._start_display(run)

    def before_train(self) -> None:
        """Restart the throughput measurement, so that iterations restored from a checkpoint are not counted."""
        self._throughput = ThroughputMeter()

    @property
    def handles_incomplete_intervals(self) -> bool:
        """Whether an interval that is longer than the run has an effect: the loss is displayed after an epoch."""
        return True

    @hookimpl(when=every("interval"))
    def after_train_iter(self, run: Run) -> None:
        """Request the loss to display: the mean over the interval."""
        run.request_record(run.metrics.window(self.name), self._store_loss)

    @hookimpl(frequency=False)
    def after_train_epoch(self, run: Run) -> None:
        """Request a first loss after an epoch that is shorter than the interval."""
        if self._loss is None and run.metrics.window(self.name):
            run.request_record(run.metrics.window(self.name), self._store_loss)

    def before_val(self) -> None:
        """Pause the throughput measurement during validation."""
        self._throughput.pause(time.monotonic())

    def after_val(self) -> None:
        """Resume the throughput measurement."""
        self._throughput.resume(time.monotonic())

    @hookimpl(frequency=False)
    def before_val_epoch(self, run: Run, dataloader_name: str | None) -> None:
        """Switch to the progress of a validation loader."""
        self._loader = ("validating", dataloader_name, _get_length(run.val_loader, dataloader_name))

    @hookimpl(frequency=False)
    def before_test_epoch(self, run: Run, dataloader_name: str | None) -> None:
        """Switch to the progress of a test loader."""
        self._loader = ("testing", dataloader_name, _get_length(run.test_loader, dataloader_name))

    def cleanup(self) -> None:
        """Stop the thread and restore the terminal."""
        self._resources.close()

    def get_progress(self, run: Run) -> ProgressState:
        """Return the current progress of the run."""
        # Called on the rendering thread: reading a tensor here would synchronize with the device.
        if run.validating and self._loader is not None:
            kind, name, total = self._loader
            return ProgressState(f"{kind} {name}" if name else kind, run.current("batch"), total, self._loss)
        if run.mode != "train":
            return ProgressState("starting")
        self._throughput.update(run.iters_done, time.monotonic())
        rate, limit = self._throughput.per_second, run.expected_last_iter
        eta = format_clock_time((limit - run.iters_done) / rate) if rate and limit is not None else "unknown"
        if run.max_epochs is None:
            return ProgressState("iteration", run.iters_done, run.max_iters, self._loss, rate, eta)
        label = f"epoch {format_count(min(run.epoch + 1, run.max_epochs), run.max_epochs)}"
        return ProgressState(
            label, run.iters_done - run.epoch_first_iter, run.expected_epoch_length, self._loss, rate, eta
        )

    # -- internal ------------------------------------------------------------------------------

    def _reset(self) -> None:
        self._throughput, self._loss, self._loader = ThroughputMeter(), None, None

    def _start_display(self, run: Run) -> None:
        console = get_console(run)
        if console.is_interactive:
            render = partial(self._render, run, console)
            # rich's own refresh thread is not fork-safe; `Ticker` is.
            live = Live(get_renderable=render, console=console, auto_refresh=False, transient=True)
            live.start()
            self._resources.callback(live.stop)
            ticker = Ticker(1 / self.config.refresh_per_second, live.refresh)
        else:
            ticker = Ticker(
                self.config.line_every, lambda: print_line(console, INDENT, format_line(self.get_progress(run)))
            )
        # Callbacks run in reverse order: the thread is joined before the terminal is restored.
        self._resources.callback(ticker.stop)

    def _render(self, run: Run, console: Console) -> RenderableType:
        return build_bar(self.get_progress(run), console.width)

    def _store_loss(self, metrics: Metrics, step: int) -> None:
        self._loss = metrics.get("train/loss", self._loss)


def _get_length(loaders: Any, name: str | None) -> int | None:
    """Return the number of batches of a loader; None if unknown."""
    loader = loaders.get(name) if isinstance(loaders, Mapping) else loaders
    return operator.length_hint(loader, 0) or None
