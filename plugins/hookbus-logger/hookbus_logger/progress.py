"""The progress hook: a bar in a terminal, periodic plain lines otherwise, and the throughput that they contain."""

from __future__ import annotations

import operator
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from rich.console import RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hookbus import Hook, Priority, Run, every, hookimpl
from hookbus.metrics import Metrics
from hookbus_logger.config import ProgressConfig
from hookbus_logger.console import get_console, print_line
from hookbus_logger.format import format_clock_time, format_count, format_number

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
        if run.max_tokens is not None:
            return ProgressState("token", run.tokens_done, run.max_tokens, self._loss, rate, eta)
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
                self.config.line_every, lambda: print_line(console, INDENT, format_line(self.get_progress(run)))
            )
        # Callbacks run in reverse order: the thread is joined before the terminal is restored.
        self._resources.callback(ticker.stop)

    def _store_loss(self, metrics: Metrics, step: int) -> None:
        self._loss = metrics.get("train/loss", self._loss)


def _get_length(loaders: Any, name: str | None) -> int | None:
    """Return the number of batches of a loader; None if unknown."""
    loader = loaders.get(name) if isinstance(loaders, Mapping) else loaders
    return operator.length_hint(loader, 0) or None


class ThroughputMeter:
    """Throughput over a sliding time window, pauses excluded. Times are in seconds of a monotonic clock.

    Args:
        span: Length of the window in seconds.
    """

    def __init__(self, span: float = 30.0) -> None:
        self._span = span
        self._pauses = 0.0
        self._paused_since: float | None = None
        self._points: deque[tuple[float, int]] = deque()

    def pause(self, now: float) -> None:
        """Exclude the time from now until `resume` from the measurement."""
        self._paused_since = now

    def resume(self, now: float) -> None:
        """End the pause; a no-op if there is none."""
        if self._paused_since is not None:
            self._pauses += now - self._paused_since
        self._paused_since = None

    def update(self, done: int, now: float) -> None:
        """Add a measurement."""
        active = (now if self._paused_since is None else self._paused_since) - self._pauses
        self._points.append((active, done))
        # Two points always remain: measurements further apart than the window would otherwise yield no rate.
        while len(self._points) > 2 and self._points[1][0] <= active - self._span:
            self._points.popleft()

    @property
    def per_second(self) -> float | None:
        """Iterations per second; None until an iteration is completed between two measurements."""
        if not self._points:
            return None
        (begin, first), (end, last) = self._points[0], self._points[-1]
        return (last - first) / (end - begin) if end > begin and last > first else None


@dataclass(frozen=True, slots=True)
class ProgressState:
    """Progress of a run at one point in time.

    Attributes:
        label: Current activity, such as "epoch 3/20" or "validating".
        done: Number of completed iterations or batches.
        total: Total number of iterations or batches; None if unknown.
        loss: Mean loss of the last record; None before the first one.
        per_second: Iterations per second; None before the first measurement.
        eta: Estimated time to the end of the run; "" outside of training.
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


def format_throughput(per_second: float) -> str:
    """Format a throughput in it/s, or in s/it if an iteration takes longer than a second."""
    value, unit = (per_second, "it/s") if per_second >= 1 else (1 / per_second, "s/it")
    return f"{value:.1f} {unit}" if value < 100 else f"{value:.0f} {unit}"


def build_bar(state: ProgressState, width: int) -> RenderableType:
    """Build a progress line with a bar for a terminal.

    The bar pulses if the total is unknown, and is omitted if the terminal is too narrow.

    Returns:
        A renderable of exactly one line.
    """
    texts = [state.label, state.position, *state.details]
    bar_width = min(MAX_BAR_WIDTH, width - 1 - sum(len(text) + GAP for text in texts) - GAP)
    if bar_width < MIN_BAR_WIDTH:
        return Text(format_line(state), no_wrap=True, overflow="ellipsis")
    grid = Table.grid(padding=(0, GAP, 0, 0))
    progress = ProgressBar(total=state.total, completed=state.done, width=bar_width, pulse=state.total is None)
    grid.add_row(texts[0], progress, *texts[1:])
    return grid


def format_line(state: ProgressState) -> str:
    """Format the progress as one line of plain text."""
    return (" " * GAP).join([state.label, state.position, *state.details])


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
