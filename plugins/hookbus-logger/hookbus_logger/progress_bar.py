"""Throughput and progress of a run, and their rendering. Independent of the event bus."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from rich.console import RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hookbus_logger.format import format_count, format_number

MAX_BAR_WIDTH, MIN_BAR_WIDTH, GAP = 32, 6, 2

# A process forked during a tick, such as a DataLoader worker, would inherit locked console locks and no thread that
# releases them. Acquiring this lock before a fork ensures that no tick is running.
_tick_lock = threading.Lock()
os.register_at_fork(before=_tick_lock.acquire, after_in_parent=_tick_lock.release, after_in_child=_tick_lock.release)


class ThroughputMeter:
    """Throughput over a sliding time window, pauses excluded.

    Args:
        span: Length of the window in seconds.
    """

    def __init__(self, span: float = 30.0) -> None:
        self._span = span
        self._pauses = 0.0
        self._paused_since: float | None = None
        self._points: deque[tuple[float, int]] = deque()

    def pause(self, now: float) -> None:
        """Exclude the time from now until `resume` from the measurement.

        Args:
            now: Current time in seconds of a monotonic clock, as in all methods.
        """
        self._paused_since = now

    def resume(self, now: float) -> None:
        """End the pause; a no-op if there is none."""
        if self._paused_since is not None:
            self._pauses += now - self._paused_since
        self._paused_since = None

    def update(self, done: int, now: float) -> None:
        """Add a measurement.

        Args:
            done: Number of completed iterations.
            now: Current time in seconds of a monotonic clock.
        """
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

    Args:
        state: Progress to render.
        width: Width of the terminal in columns.

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
