"""Which listener is running? Read off the line of the compiled function that calls it, so knowing it costs nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hookbus.dispatch.compiling import Listener

__all__ = ["LINES", "asking", "failed", "handling", "nested"]

LINES = "__hookbus_lines__"  # in the globals of a compiled function: which listener is called in which line


def failed(error: BaseException) -> Listener | None:
    """The listener in which an exception arose, seen from the generated function that is handling it."""
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        lines = trace.tb_frame.f_globals.get(LINES)
        if lines is not None:
            return lines.get(trace.tb_lineno)  # type: ignore[no-any-return]
        trace = trace.tb_next
    return None


def asking() -> Listener | None:
    """The listener that is running now, the innermost one; None outside of any."""
    return next(_running(), None)


def nested(run: object) -> bool:
    """Whether more than one event of a run is being handled, one inside the other."""
    return _events(run) > 1


def handling(run: object) -> bool:
    """Whether an event of a run is being handled."""
    return _events(run) > 0


def _events(run: object) -> int:
    return sum(LINES in frame.f_globals and frame.f_globals["run"] is run for frame in _frames())


def _running() -> Iterator[Listener]:
    for frame in _frames():
        lines = frame.f_globals.get(LINES)
        if lines is not None and frame.f_lineno in lines:
            yield lines[frame.f_lineno]


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back
