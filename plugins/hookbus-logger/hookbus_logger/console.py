"""The console shared by the hooks of a run, and log messages on it."""

from __future__ import annotations

import io
import logging
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleDimensions
from rich.segment import Segment, Segments
from rich.text import Text

from hookbus import Run
from hookbus_logger.format import Part

LOGGER_NAME = "hookbus"
PIPED_WIDTH = 160
DATE_WIDTH = 100
"""Minimum width in characters of lines that start with the date."""
CONTROL_CHARACTERS = dict.fromkeys({*range(32), *range(127, 160)} - {ord("\t"), ord("\n")})
STYLES = {logging.WARNING: "yellow", logging.ERROR: "bold red", logging.CRITICAL: "bold red"}


class RunConsole(Console):
    """Console that discards its output after a broken pipe instead of exiting the process."""

    def on_broken_pipe(self) -> None:
        """Discard all further output."""
        self.quiet = True
        self.file = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # used until the process exits


def get_console(run: Run) -> Console:
    """Return the `console` service of a run; create and register it if there is none."""
    console = run.get("console")
    if console is None:
        # In a notebook, rich would add one output per line to the cell; plain lines are appended to its text output.
        console = RunConsole(highlight=False, force_jupyter=False)
        _escape_unencodable_characters()
        columns = _get_columns()
        if columns or not console.is_terminal:
            # rich queries the terminal size for each line unless both width and height are set, and ignores COLUMNS
            # in a terminal without cursor movements.
            console.size = ConsoleDimensions(columns or PIPED_WIDTH, console.height)
        run.provide("console", console)
    return console  # type: ignore[no-any-return]


def _get_columns() -> int:
    """Return the width that the environment variable COLUMNS sets; 0 if it sets none."""
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isdecimal() else 0


def is_ascii(console: Console) -> bool:
    """Return whether a console can display ASCII characters only."""
    return not console.encoding.lower().replace("-", "").startswith("utf")


def _escape_unencodable_characters() -> None:
    """Escape characters that standard output cannot encode, as a pipe on Windows, instead of raising an error."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def print_line(console: Console, *parts: str | Part) -> None:
    """Print one line, which starts with the time if the output is not a terminal.

    A line that is longer than a terminal, or than COLUMNS, is wrapped between words.

    Args:
        console: Console to print on.
        parts: Texts, or pairs of text and style. Control characters are removed; text after a line break is indented
            to the start of the text.
    """
    # rich converts a Text to segments before printing; building them directly takes a quarter of the time.
    head = format_time(console)
    pairs = [(head, "dim"), *((part, "") if isinstance(part, str) else part for part in parts)]
    # A message may contain text from anywhere; escape sequences in it must not reach the terminal.
    printable = [(text.translate(CONTROL_CHARACTERS), style) for text, style in pairs]
    width = get_width(console)
    if width is not None and any(cell_len(line) > width for line in "".join(text for text, _ in printable).split("\n")):
        # A hanging indent of at least two spaces distinguishes the second line from the next message.
        return _print_wrapped(console, printable, width, " " * max(2, len(head)))
    if console.color_system is None and not console.record:
        # Styles are not rendered, so a single segment suffices.
        printable = [("".join(text for text, _ in printable), "")]
    indent = "\n" + " " * len(head)
    line = [_build_segment(console, text.replace("\n", indent), style) for text, style in printable]
    console.print(Segments([*line, Segment.line()]), soft_wrap=True)


def get_width(console: Console) -> int | None:
    """Return the width to which messages are wrapped: that of a terminal or COLUMNS; None if they are not."""
    return console.width if console.is_terminal or _get_columns() else None


def get_line_width(console: Console) -> int | None:
    """Return the width that is available after the time; None for lines of any length."""
    width = get_width(console)
    return None if width is None else width - len(format_time(console))


def _print_wrapped(console: Console, parts: Sequence[Part], width: int, indent: str) -> None:
    """Print text wrapped between words, with an indent of the second and later lines; long words are not broken."""
    text = Text.assemble(*parts)
    lines: list[Text] = []
    for paragraph in text.split("\n"):
        available = width if not lines else width - len(indent)
        while cell_len(paragraph.plain) > available and (cut := _find_break(paragraph.plain, available)):
            first, paragraph = paragraph.divide([cut])
            first.rstrip()
            lines.append(first)
            available = width - len(indent)
        lines.append(paragraph)
    console.print(Text(f"\n{indent}").join(lines), soft_wrap=True)


def _find_break(text: str, width: int) -> int:
    """Return the index after the last space at which a text can be broken to fit a width; 0 if there is none."""
    spaces = [i for i, character in enumerate(text) if character == " " and text[:i].strip() and text[i:].strip()]
    fitting = [i for i in spaces if cell_len(text[:i]) <= width]
    return (fitting[-1] if fitting else spaces[0] if spaces else -1) + 1


def _build_segment(console: Console, text: str, style: str) -> Segment:
    return Segment(text, console.get_style(style) if style else None)


def format_time(console: Console) -> str:
    """Return the beginning of a line: date and time, or the time if the output is narrow; "" in a terminal."""
    if console.is_terminal:
        return ""
    return time.strftime("%Y-%m-%d %H:%M:%S  " if console.width >= DATE_WIDTH else "%H:%M:%S  ")


class ConsoleHandler(logging.Handler):
    """Logging handler that prints messages on a console, above a progress bar if there is one."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self.console = console

    def emit(self, record: logging.LogRecord) -> None:
        """Print one log record, unless a table of the console contains its values."""
        if getattr(record, "is_in_table", False) and self.console.is_terminal:
            return
        try:
            head = f"{record.levelname.lower()}  " if record.levelno != logging.INFO else ""
            print_line(self.console, (head, STYLES.get(record.levelno, "dim")), self.format(record))
        except Exception:
            self.handleError(record)


@contextmanager
def redirect_messages(console: Console) -> Iterator[None]:
    """Context manager that prints the messages of the "hookbus" logger on a console.

    Other handlers that write to a terminal skip these messages; handlers that write elsewhere are not modified. A level
    set by the user stays in effect.
    """
    logger, console_handler = logging.getLogger(LOGGER_NAME), ConsoleHandler(console)
    # Filters on the handlers, not `propagate = False`: pytest's caplog and file handlers on the root logger must still
    # receive the messages.
    filtered_handlers = [handler for handler in _get_handlers(logger) if _writes_to_terminal(handler)]
    level = logger.level
    # An object of this context: a handler has each filter only once, and runs may overlap.
    is_foreign = partial(_is_foreign)
    for handler in filtered_handlers:
        handler.addFilter(is_foreign)
    logger.addHandler(console_handler)
    # The root logger's default level is WARNING; without this, `run.logger.info` would print nothing.
    if level == logging.NOTSET and logger.getEffectiveLevel() > logging.INFO:
        logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(console_handler)
        for handler in filtered_handlers:
            handler.removeFilter(is_foreign)


def _is_foreign(record: logging.LogRecord) -> bool:
    """Return whether a record belongs to another logger; those of hookbus are already printed on the console."""
    return record.name.partition(".")[0] != LOGGER_NAME


def _get_handlers(logger: logging.Logger) -> list[logging.Handler]:
    """Return the handlers that receive the messages of a logger, those of its ancestors included."""
    handlers, current = list(logger.handlers), logger
    while current.propagate and current.parent is not None:
        current = current.parent
        handlers += current.handlers
    return handlers


def _writes_to_terminal(handler: Any) -> bool:
    """Return whether a handler of logging or rich writes to standard output or standard error."""
    stream = getattr(handler, "stream", None) or getattr(getattr(handler, "console", None), "file", None)
    standard = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
    # rich.live replaces sys.stdout and sys.stderr with proxies while a bar is displayed.
    return stream is not None and stream in [getattr(file, "rich_proxied_file", file) for file in standard]
