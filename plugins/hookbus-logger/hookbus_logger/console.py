"""One console for all who print, and the messages of a run on it."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console, ConsoleDimensions, RenderableType
from rich.padding import Padding
from rich.segment import Segment, Segments

from hookbus import Run
from hookbus_logger.format import Part

__all__ = ["ConsoleHandler", "console_of", "messages_on", "say", "show_below"]

LOGGER = "hookbus"
PIPED_WIDTH = 160
CONTROL = dict.fromkeys({*range(32), 127} - {ord("\t"), ord("\n")})
STYLES = {logging.WARNING: "yellow", logging.ERROR: "bold red", logging.CRITICAL: "bold red"}


class RunConsole(Console):
    """A console whose reader may leave: the run goes on without it."""

    def on_broken_pipe(self) -> None:
        """What is printed from now on goes nowhere."""
        self.quiet = True
        self.file = open(os.devnull, "w")  # noqa: SIM115  # as long as the process


def console_of(run: Run) -> Console:
    """The service `console` of a run. Whoever asks first makes it, unless the run was given one."""
    console = run.get("console")
    if console is None:
        console = RunConsole(highlight=False)
        if not console.is_terminal:  # whose size would be asked for at each line, unless both sides are given
            console.size = ConsoleDimensions(PIPED_WIDTH, console.height)
        run.provide("console", console)
    return console  # type: ignore[no-any-return]


def say(console: Console, *parts: str | Part) -> None:
    """Print one line, headed by the time; it is never broken by us, however long.

    Args:
        console: where to.
        parts: texts, or pairs of text and style; control characters in them are left out. What follows a line break
            stands under the text.
    """
    # Segments are what rich makes of a Text in the end; made at once, a line costs a quarter.
    head = f"{_stamp(console)}  "
    pairs = [(head, "dim"), *((part, "") if isinstance(part, str) else part for part in parts)]
    if console.color_system is None and not console.record:  # one piece, as no style will be seen
        pairs = [("".join(text for text, _ in pairs), "")]
    line = [_segment(console, text, style, " " * len(head)) for text, style in pairs]
    console.print(Segments([*line, Segment.line()]), soft_wrap=True)


def _segment(console: Console, text: str, style: str, indent: str) -> Segment:
    shown = text.translate(CONTROL).replace("\n", f"\n{indent}")
    return Segment(shown, console.get_style(style) if style else None)


def show_below(console: Console, renderable: RenderableType) -> None:
    """Print something that has several lines, under the text of the lines above.

    Args:
        console: where to.
        renderable: what.
    """
    console.print(Padding(renderable, (0, 0, 0, len(_stamp(console)) + 2), expand=False))


def _stamp(console: Console) -> str:
    return time.strftime("%H:%M:%S" if console.is_terminal else "%Y-%m-%d %H:%M:%S")


class ConsoleHandler(logging.Handler):
    """Prints log messages as lines on a console, so that they appear above a progress bar.

    Args:
        console: where to.
    """

    def __init__(self, console: Console) -> None:
        super().__init__()
        self.console = console

    def emit(self, record: logging.LogRecord) -> None:
        """Print one message."""
        try:
            head = f"{record.levelname.lower()}  " if record.levelno != logging.INFO else ""
            say(self.console, (head, STYLES.get(record.levelno, "dim")), self.format(record))
        except Exception:
            self.handleError(record)


@contextmanager
def messages_on(console: Console) -> Iterator[None]:
    """While this lasts, what is logged under "hookbus" appears on the console, and on no other terminal handler.

    Handlers that write elsewhere go on as before. A level that the user has set stays.

    Args:
        console: where to.
    """
    logger, handler, quiet = logging.getLogger(LOGGER), ConsoleHandler(console), _Shown()
    silenced = [each for each in _handlers_of(logger) if _writes_to_terminal(each)]
    level = logger.level
    for each in silenced:
        each.addFilter(quiet)
    logger.addHandler(handler)
    if level == logging.NOTSET and logger.getEffectiveLevel() > logging.INFO:
        logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)
        for each in silenced:
            each.removeFilter(quiet)


class _Shown(logging.Filter):
    """Holds back the messages that are on the console already."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.name.partition(".")[0] != LOGGER


def _handlers_of(logger: logging.Logger) -> list[logging.Handler]:
    """The handlers that see the messages of a logger."""
    found, current = list(logger.handlers), logger
    while current.propagate and current.parent is not None:
        current = current.parent
        found += current.handlers
    return found


def _writes_to_terminal(handler: Any) -> bool:
    """Whether a handler, of logging or of rich, writes to standard output or standard error."""
    stream = getattr(handler, "stream", None) or getattr(getattr(handler, "console", None), "file", None)
    standard = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
    return stream is not None and stream in [getattr(each, "rich_proxied_file", each) for each in standard]
