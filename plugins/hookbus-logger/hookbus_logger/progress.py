"""The progress hook: a bar in a terminal or notebook, and periodic plain lines otherwise."""

from __future__ import annotations

import operator
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hookbus import Hook, Priority, Run, every, hookimpl
from hookbus.metrics import Metrics
from hookbus.writers import format_clock_time, format_number
from hookbus_logger.config import ProgressConfig
from hookbus_logger.console import get_console, get_line_width, print_line
from hookbus_logger.format import format_count
from hookbus_logger.logger import LoggerHook
from hookbus_logger.notebook import get_notebook
from hookbus_logger.notebook_page import Bar
from hookbus_logger.row_collector import get_position_width
from hookbus_logger.throughput import ThroughputMeter, format_throughput

INDENT = " " * 7
"""Indentation of plain lines, aligned with the position in the lines of `LoggerHook`."""
MAX_BAR_WIDTH, MIN_BAR_WIDTH, GAP = 32, 6, 2

# A process forked during a tick, such as a DataLoader worker, would inherit locked console locks and no thread that
# releases them. Acquiring this lock before a fork ensures that no tick is running.
_tick_lock = threading.Lock()
if hasattr(os, "register_at_fork"):  # Windows cannot fork
    os.register_at_fork(
        before=_tick_lock.acquire, after_in_parent=_tick_lock.release, after_in_child=_tick_lock.release
    )


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
    _loader: tuple[str, int | None] | None

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
        self._begin_loader("validating", dataloader_name, run.val_loader)

    @hookimpl(frequency=False)
    def before_test_epoch(self, run: Run, dataloader_name: str | None) -> None:
        """Switch to the progress of a test loader."""
        self._begin_loader("testing", dataloader_name, run.test_loader)

    @hookimpl(frequency=False)
    def before_predict_epoch(self, run: Run, dataloader_name: str | None) -> None:
        """Switch to the progress of a loader that is predicted."""
        self._begin_loader("predicting", dataloader_name, run.predict_loader)

    def cleanup(self) -> None:
        """Stop the thread and restore the terminal."""
        self._resources.close()

    def get_progress(self, run: Run) -> ProgressState:
        """Return the current progress of the run."""
        # Called on the rendering thread: reading a tensor here would synchronize with the device.
        if run.validating and self._loader is not None:
            return self._get_loader_progress(run, *self._loader)
        if run.mode != "train":
            return ProgressState("starting")
        self._throughput.update(run.iters_done, time.monotonic())
        rate, limit = self._throughput.per_second, run.expected_last_iter
        eta = _format_eta(rate, run.iters_done, limit)
        if run.max_tokens is not None:
            return ProgressState("token", run.tokens_done, run.max_tokens, self._loss, rate, eta)
        if run.max_epochs is None:
            return ProgressState("iteration", run.iters_done, run.max_iters, self._loss, rate, eta)
        epoch = format_count(min(run.epoch + 1, run.max_epochs), run.max_epochs)
        # Below the first column of the table that the console hook displays.
        label = epoch.rjust(get_position_width(run)) if self._has_table(run) else f"epoch {epoch}"
        return ProgressState(
            label, run.iters_done - run.epoch_first_iter, run.expected_epoch_length, self._loss, rate, eta
        )

    # -- internal ------------------------------------------------------------------------------

    def _has_table(self, run: Run) -> bool:
        """Return whether the console hook of the run displays a table."""
        return get_console(run).is_terminal and any(isinstance(hook, LoggerHook) for hook in run.bus.hooks.values())

    def _begin_loader(self, kind: str, name: str | None, loaders: Any) -> None:
        self._loader = f"{kind} {name}" if name else kind, _get_length(loaders, name)
        self._loader_throughput = ThroughputMeter()

    def _get_loader_progress(self, run: Run, label: str, total: int | None) -> ProgressState:
        """Return the progress of a loader; with throughput unless it is that of a validation during a training."""
        done = run.current("batch")
        if run.mode == "train":
            return ProgressState(label, done, total, self._loss)
        self._loader_throughput.update(done, time.monotonic())
        rate = self._loader_throughput.per_second
        return ProgressState(label, done, total, None, rate, _format_eta(rate, done, total) if rate and total else "")

    def _reset(self) -> None:
        self._throughput, self._loader_throughput = ThroughputMeter(), ThroughputMeter()
        self._loss, self._loader = None, None

    def _start_display(self, run: Run) -> None:
        console, notebook = get_console(run), get_notebook(run)
        if notebook is not None:
            self._resources.callback(lambda: notebook.end_progress(self._build_bar(run)))
            ticker = Ticker(1 / self.config.refresh_per_second, lambda: notebook.show_progress(self._build_bar(run)))
        elif console.is_interactive:
            # rich's own refresh thread is not fork-safe; `Ticker` is.
            live = Live(
                get_renderable=lambda: build_bar(self.get_progress(run), console.width),
                console=console,
                auto_refresh=False,
                transient=True,
            )
            live.start()
            self._resources.callback(live.stop)
            ticker = Ticker(1 / self.config.refresh_per_second, live.refresh)
        else:
            ticker = Ticker(
                self.config.line_every, lambda: print_line(console, INDENT, self._format_line(run, console))
            )
        # Callbacks run in reverse order: the thread is joined before the terminal is restored.
        self._resources.callback(ticker.stop)

    def _build_bar(self, run: Run) -> Bar:
        state = self.get_progress(run)
        return Bar(state.label, state.done / state.total if state.total else None, [state.position, *state.details])

    def _format_line(self, run: Run, console: Console) -> str:
        width = get_line_width(console)
        return format_line(self.get_progress(run), None if width is None else width - len(INDENT))

    def _store_loss(self, metrics: Metrics, step: int) -> None:
        self._loss = metrics.get("train/loss", self._loss)


def _get_length(loaders: Any, name: str | None) -> int | None:
    """Return the number of batches of a loader; None if unknown."""
    loader = loaders.get(name) if isinstance(loaders, Mapping) else loaders
    return operator.length_hint(loader, 0) or None


def _format_eta(rate: float | None, done: int, total: int | None) -> str:
    return format_clock_time((total - done) / rate) if rate and total is not None else "unknown"


@dataclass(frozen=True, slots=True)
class ProgressState:
    """Progress of a run at one point in time.

    Attributes:
        label: Current activity, such as "epoch 3/20" or "validating".
        done: Number of completed iterations or batches.
        total: Total number of iterations or batches; None if unknown.
        loss: Mean loss of the last record; None before the first one.
        per_second: Iterations per second; None before the first measurement.
        eta: Estimated time to the end of the run, or of the loader outside of a training; "" if there is none.
    """

    label: str
    done: int = 0
    total: int | None = None
    loss: float | None = None
    per_second: float | None = None
    eta: str = ""

    @property
    def position(self) -> str:
        """Completed and total count, such as "150/450"; "150 it" if the total is unknown."""
        return format_count(self.done, self.total) if self.total is not None else f"{self.done} it"

    @property
    def details(self) -> list[str]:
        """Loss, throughput and remaining time, as far as they are known."""
        loss = [] if self.loss is None else [f"loss {format_number(self.loss)}"]
        rate = [] if self.per_second is None else [format_throughput(self.per_second)]
        return [*loss, *rate, *([f"eta {self.eta}"] if self.eta else [])]


def build_bar(state: ProgressState, width: int) -> RenderableType:
    """Build a progress line with a bar for a terminal.

    The bar pulses if the total is unknown, and is omitted if the terminal is too narrow, before the last details.

    Returns:
        A renderable of exactly one line.
    """
    texts = [state.label, state.position, *state.details]
    bar_width = min(MAX_BAR_WIDTH, width - 1 - sum(len(text) + GAP for text in texts) - GAP)
    if bar_width < MIN_BAR_WIDTH:
        return Text(format_line(state, width), no_wrap=True, overflow="ellipsis")
    grid = Table.grid(padding=(0, GAP, 0, 0))
    progress = ProgressBar(total=state.total, completed=state.done, width=bar_width, pulse=state.total is None)
    grid.add_row(texts[0], progress, *texts[1:])
    return grid


def format_line(state: ProgressState, width: int | None = None) -> str:
    """Format the progress as one line of plain text.

    Args:
        state: Progress of the run.
        width: Width in characters; the last details are omitted if the line is longer. Default: None, for all.
    """
    texts = [state.label, state.position, *state.details]
    while width is not None and len(texts) > 2 and len((" " * GAP).join(texts)) > width:
        texts.pop()
    return (" " * GAP).join(texts)


class Ticker:
    """Daemon thread that calls a function at a fixed interval until it is stopped.

    Args:
        seconds: Seconds between two calls.
        tick: Function to call; its result is ignored.
    """

    def __init__(self, seconds: float, tick: Callable[[], object]) -> None:
        self._seconds, self._tick = seconds, tick
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hookbus progress", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and join it."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._seconds):
            with _tick_lock:
                self._tick()
