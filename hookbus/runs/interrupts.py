"""Ctrl-C: the run ends where it can be gone on with."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING

from hookbus.requests import Kind

if TYPE_CHECKING:
    from hookbus.run import Run

__all__ = ["graceful_interrupts"]


@contextmanager
def graceful_interrupts(run: Run) -> Iterator[None]:
    """Ctrl-C ends the run at the next iteration boundary, with a last checkpoint; a second one ends it at once.

    Nothing is changed where somebody else listens to Ctrl-C, and in a thread, which hears of no signal.

    Args:
        run: the run that is going on inside.
    """
    earlier = signal.getsignal(signal.SIGINT)
    if not _can_be_heard(run) or earlier is not signal.default_int_handler:
        yield
        return

    def handle(_number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, earlier)
        run.interrupt()
        with suppress(RuntimeError):  # Ctrl-C may have come while a line was being written
            run.logger.warning("Interrupted: finishing this iteration. Press Ctrl-C again to stop at once.")

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, earlier)
    _admit_late_ones(run)


def _can_be_heard(run: Run) -> bool:
    """Whether there is a boundary at which all processes hear of it; else Ctrl-C ends this one, and with it all."""
    is_main_thread = threading.current_thread() is threading.main_thread()
    return is_main_thread and (run.ranks.world_size == 1 or run.decisions.active)


def _admit_late_ones(run: Run) -> None:
    """Ctrl-C may have come after the last boundary; for other requests to stop that is too late."""
    run.decisions.admit_interrupt()
    late = run.queue.take(Kind.STOP)
    run.agree_to_stop([each for each in late if each.details["outcome"] == "interrupted"])
