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

from hookbus import Hook, Priority, Run, every, hookimpl, once
from hookbus.metrics import Metrics
from hookbus_logger.bar import Pace, Ticker, View, bar, line
from hookbus_logger.config import ProgressConfig
from hookbus_logger.console import console_of, say
from hookbus_logger.format import clock_time, count

__all__ = ["ProgressHook"]

INDENT = " " * 7
"""Indentation of plain lines, aligned with the position in the lines of `LoggerHook`."""


def _interval(config: Any) -> Any:
    # The first iteration is included so that a loss is displayed early in a slow run.
    return once(1, unit="batch") | every(config.interval, unit="batch")


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
        self._open = ExitStack()
        self._begin()

    def before_run(self, run: Run, mode: str) -> None:
        """Start displaying the progress."""
        self.cleanup()
        self._begin()
        if mode == "train":
            run.metrics.window(self.name)
        self._show(run)

    def before_train(self) -> None:
        """Restart the throughput measurement, so that iterations restored from a checkpoint are not counted."""
        self._pace = Pace()

    @hookimpl(when=_interval)
    def after_train_iter(self, run: Run) -> None:
        """Request the loss to display."""
        run.request_record(run.metrics.window(self.name), self._take_loss)

    def before_val(self) -> None:
        """Pause the throughput measurement during validation."""
        self._pace.pause(time.monotonic())

    def after_val(self) -> None:
        """Resume the throughput measurement."""
        self._pace.go_on(time.monotonic())

    def before_val_epoch(self, run: Run, dataloader_name: str | None) -> None:
        """Switch to the progress of a validation loader."""
        self._loader = ("validating", dataloader_name, _length(run.val_loader, dataloader_name))

    def before_test_epoch(self, run: Run, dataloader_name: str | None) -> None:
        """Switch to the progress of a test loader."""
        self._loader = ("testing", dataloader_name, _length(run.test_loader, dataloader_name))

    def cleanup(self) -> None:
        """Stop the thread and restore the terminal."""
        self._open.close()

    def view(self, run: Run) -> View:
        """Return the current progress of the run."""
        # Called on the rendering thread: reading a tensor here would synchronize with the device.
        clock = run.clock
        if run.validating and self._loader is not None:
            kind, name, total = self._loader
            return View(f"{kind} {name}" if name else kind, clock.batch + 1, total, self._loss)
        if run.mode != "train":
            return View("starting")
        self._pace.see(run.iters_done, time.monotonic())
        pace, limit = self._pace.per_second, clock.limit("iter")
        eta = clock_time((limit - run.iters_done) / pace) if pace and limit is not None else "unknown"
        if run.max_epochs is None:
            return View("iteration", run.iters_done, run.max_iters, self._loss, pace, eta)
        label = f"epoch {count(min(run.epoch + 1, run.max_epochs), run.max_epochs)}"
        return View(label, run.iters_done - clock.epoch_first_iter, clock.epoch_length, self._loss, pace, eta)

    # -- internal ------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._pace, self._loss, self._loader = Pace(), None, None

    def _show(self, run: Run) -> None:
        console = console_of(run)
        if console.is_interactive:
            render = partial(self._drawn, run, console)
            # rich's own refresh thread is not fork-safe; `Ticker` is.
            live = Live(get_renderable=render, console=console, auto_refresh=False, transient=True)
            live.start()
            self._open.callback(live.stop)
            ticker = Ticker(1 / self.config.refresh_per_second, live.refresh)
        else:
            ticker = Ticker(self.config.line_every, lambda: say(console, INDENT, line(self.view(run))))
        # Callbacks run in reverse order: the thread is joined before the terminal is restored.
        self._open.callback(ticker.stop)

    def _drawn(self, run: Run, console: Console) -> RenderableType:
        return bar(self.view(run), console.width)

    def _take_loss(self, metrics: Metrics, step: int) -> None:
        self._loss = metrics.get("train/loss", self._loss)


def _length(loaders: Any, name: str | None) -> int | None:
    """Return the number of batches of a loader; None if unknown."""
    loader = loaders.get(name) if isinstance(loaders, Mapping) else loaders
    return operator.length_hint(loader, 0) or None
