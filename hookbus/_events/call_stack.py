"""Lookup of the running listener.

The listener is derived from the current line of the generated function that calls it, so that calls need no
bookkeeping.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hookbus._events.ordering import Listener

PACKAGE = str(Path(__file__).parents[1]) + os.sep
"""Start of the file names of hookbus itself."""

GENERATED = "<hookbus "
"""Start of the file names of generated functions."""

LISTENER_LINES = "__hookbus_lines__"
"""Global variable of a generated function that maps line numbers to the listeners called there."""


def failing_listener(error: BaseException) -> Listener | None:
    """Return the listener that raised an exception, from the generated function that handles the exception.

    Returns:
        Listener, or None if the exception was not raised by a listener.
    """
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        # The first generated frame is that of the handling function; deeper ones belong to events within the listener.
        lines = trace.tb_frame.f_globals.get(LISTENER_LINES)
        if lines is not None:
            return lines.get(trace.tb_lineno)  # type: ignore[no-any-return]
        trace = trace.tb_next
    return None


def current_listener() -> Listener | None:
    """Return the innermost listener that is running, None if there is none."""
    for frame in _iter_frames():
        listener: Listener | None = frame.f_globals.get(LISTENER_LINES, {}).get(frame.f_lineno)
        if listener is not None:
            return listener
    return None


def current_point(run: object) -> str | None:
    """Return the point of the innermost event of a run that is in progress, None if there is none."""
    return next(_iter_points(run), None)


def current_points(run: object) -> set[str]:
    """Return the points of all events of a run that are in progress: an event and those that it is nested in."""
    return set(_iter_points(run))


def current_run() -> Any:
    """Return the run of the innermost event that is in progress, None if there is none."""
    return next((frame.f_globals["run"] for frame in _iter_frames() if LISTENER_LINES in frame.f_globals), None)


def find_caller() -> str:
    """Return the file and the line outside of hookbus that called a function of hookbus."""
    places = (format_place(frame.f_code, frame.f_lineno) for frame in _iter_frames())
    # The code of the caller may have no file either: `python -c`, a notebook, an interactive session.
    return next((place for place in places if not place.startswith((GENERATED, PACKAGE))), "an unknown place")


def format_place(code: CodeType, line: int) -> str:
    """Return the file and the line of a place in the code."""
    return f"{code.co_filename}:{line}"


def in_nested_event(run: object) -> bool:
    """Return whether an event of a run is in progress within another event of the run."""
    return len(list(_iter_points(run))) > 1


def in_event(run: object) -> bool:
    """Return whether an event of a run is in progress."""
    return current_point(run) is not None


def _iter_points(run: object) -> Iterator[str]:
    for frame in _iter_frames():
        if LISTENER_LINES in frame.f_globals and frame.f_globals["run"] is run:
            yield frame.f_code.co_name


def _iter_frames() -> Iterator[FrameType]:
    # `inspect.stack()` reads source files and is too slow for requests within iterations.
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back
