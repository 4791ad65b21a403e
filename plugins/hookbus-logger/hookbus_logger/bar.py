"""How fast a training goes and how far it has come, and how that looks. Knows nothing of trainings."""

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

from hookbus_logger.format import count, number

__all__ = ["Pace", "Ticker", "View", "bar", "line", "speed"]

BAR_WIDTH, SHORTEST_BAR, GAP = 32, 6, 2

# A worker process that is forked in the middle of a tick would inherit the locks of the console for ever.
_ticking = threading.Lock()
os.register_at_fork(before=_ticking.acquire, after_in_parent=_ticking.release, after_in_child=_ticking.release)


class Pace:
    """How many a second, over the last while; pauses are left out.

    Args:
        span: so many seconds are looked back.
    """

    def __init__(self, span: float = 30.0) -> None:
        self._span = span
        self._pauses = 0.0
        self._paused_since: float | None = None
        self._points: deque[tuple[float, int]] = deque()

    def pause(self, now: float) -> None:
        """From here on the count stands still for a reason that says nothing about the pace.

        Args:
            now: seconds of a clock that never goes back; so everywhere.
        """
        self._paused_since = now

    def go_on(self, now: float) -> None:
        """The pause is over."""
        if self._paused_since is not None:
            self._pauses += now - self._paused_since
        self._paused_since = None

    def see(self, done: int, now: float) -> None:
        """Look at the count: so many are done."""
        active = (now if self._paused_since is None else self._paused_since) - self._pauses
        self._points.append((active, done))
        while len(self._points) > 2 and self._points[1][0] <= active - self._span:
            self._points.popleft()

    @property
    def per_second(self) -> float | None:
        """How many a second; None as long as nothing has moved."""
        if not self._points:
            return None
        (begin, first), (end, last) = self._points[0], self._points[-1]
        return (last - first) / (end - begin) if end > begin and last > first else None


@dataclass(frozen=True, slots=True)
class View:
    """Where a run stands, at one glance.

    Attributes:
        label: what goes on: "epoch 3/20", "validating".
        done, total: how far it is; total None where nobody knows.
        loss: of the last record, None before the first.
        per_second: iterations a second, None before the first.
        eta: time to the end of the run; "" where that is not the question.
    """

    label: str
    done: int = 0
    total: int | None = None
    loss: float | None = None
    per_second: float | None = None
    eta: str = ""

    @property
    def place(self) -> str:
        """How far it is: 150/450, or 150 it where the total is not known."""
        return count(self.done, self.total) if self.total is not None else f"{self.done} it"

    @property
    def facts(self) -> list[str]:
        """What there is to say besides how far it is."""
        loss = [] if self.loss is None else [f"loss {number(self.loss)}"]
        rate = [] if self.per_second is None else [speed(self.per_second)]
        return [*loss, *rate, *([f"eta {self.eta}"] if self.eta else [])]


def speed(per_second: float) -> str:
    """Iterations a second, or seconds an iteration where one takes longer than a second."""
    value, unit = (per_second, "it/s") if per_second >= 1 else (1 / per_second, "s/it")
    return f"{value:.1f} {unit}" if value < 100 else f"{value:.0f} {unit}"


def bar(view: View, width: int) -> RenderableType:
    """One line with a bar, for a terminal; the bar only moves to and fro where the total is not known.

    Args:
        view: what is shown.
        width: columns of the terminal; where there is no room for a bar, the line has none.
    """
    texts = [view.label, view.place, *view.facts]
    room = min(BAR_WIDTH, width - 1 - sum(len(text) + GAP for text in texts) - GAP)
    if room < SHORTEST_BAR:
        return Text(line(view), no_wrap=True, overflow="ellipsis")
    grid = Table.grid(padding=(0, GAP, 0, 0))
    drawn = ProgressBar(total=view.total, completed=view.done, width=room, pulse=view.total is None)
    grid.add_row(texts[0], drawn, *texts[1:])
    return grid


def line(view: View) -> str:
    """One plain line."""
    return (" " * GAP).join([view.label, view.place, *view.facts])


class Ticker:
    """Calls a function every so many seconds, on a thread of its own, until it is stopped.

    Args:
        seconds: between two calls.
        tick: what is called.
    """

    def __init__(self, seconds: float, tick: Callable[[], object]) -> None:
        self._seconds, self._tick = seconds, tick
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hookbus progress", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and wait for its end."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._seconds):
            with _ticking:
                self._tick()
