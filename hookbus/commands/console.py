"""How the command line talks: tables and results on standard output, everything else on standard error."""

from __future__ import annotations

import errno
import json
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape

from hookbus.distributed import is_main, rank, said_by_main
from hookbus.errors import ConfigError, HookbusError, HookWarning

__all__ = ["complain", "console", "errors", "print_json", "reported"]

PIPED_WIDTH = 160
"""Columns of a table that goes into a file or a pipe, where nothing says how wide it may be."""


@contextmanager
def reported() -> Iterator[None]:
    """Turn exceptions into messages and exit codes, and warnings into lines."""
    with _messages_shown(), warnings.catch_warnings():
        warnings.simplefilter("always", HookWarning)
        warnings.showwarning = _show_warning
        try:
            yield
        except (typer.Exit, BrokenPipeError):
            raise
        except (Exception, KeyboardInterrupt, SystemExit) as error:
            raise typer.Exit(_told(error)) from None


def _told(error: BaseException) -> int:
    """Say what has ended a command; returns its exit code."""
    match error:
        case HookbusError():
            if not said_by_main(str(error)):
                _show(error)
            return 2 if isinstance(error, ConfigError) else 1
        case KeyboardInterrupt():
            errors().print("[yellow]interrupted[/]")
            return 130
        case SystemExit():
            code = "" if error.code is None else repr(error.code)
            complain(f"Something called sys.exit({code}) in the middle of this.")
            _show_notes(error)
        case OSError() if _came_from_output(error):
            # Python writes what is left of the output when it ends: that must not fail once more.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            complain(f"Standard output cannot be written: {error.strerror}.")
        case _:
            traceback.print_exception(error)
    return 1


def console() -> Console:
    """Standard output, as wide as terminal or COLUMNS say. Of several processes only the main one writes there."""
    told = os.environ.get("COLUMNS")
    is_known = told != "0" if told else sys.stdout is not None and sys.stdout.isatty()
    return _Output(width=None if is_known else PIPED_WIDTH, highlight=False, quiet=not is_main())


def complain(message: str) -> None:
    """Say what went wrong."""
    errors().print(f"{_who()}[red]error:[/] {escape(message)}", soft_wrap=True, highlight=False)


def print_json(value: Any) -> None:
    """A result for scripts, from the main process."""
    if is_main():
        typer.echo(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def errors() -> Console:
    """Standard error."""
    return Console(stderr=True, highlight=False)


class _Output(Console):
    """Standard output. To rich a reader that has left is a call of `sys.exit`; here it stays what it is."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def _who() -> str:
    """The beginning of a line of a process that is not the main one."""
    return "" if is_main() else f"rank {rank()}: "


def _came_from_output(error: OSError) -> bool:
    """Whether it was raised where tables and results are written."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return str(frame.f_globals.get("__name__")).partition(".")[0] in ("rich", "typer", "click")


def _show(error: HookbusError) -> None:
    """What a user did wrong or what could not be done, in lines."""
    if isinstance(error, ConfigError):
        for problem in error.problems:
            errors().print(escape(f"{_who()}{problem}"), soft_wrap=True, highlight=False)
    else:
        for line in str(error).splitlines():
            complain(line)
    _show_notes(error)


def _show_notes(error: BaseException) -> None:
    """Which hook raised it, and where."""
    for note in getattr(error, "__notes__", ()):
        errors().print(f"  {escape(note)}", soft_wrap=True, highlight=False)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    errors().print(f"{_who()}[yellow]warning:[/] {escape(str(message))}", soft_wrap=True)


@contextmanager
def _messages_shown() -> Iterator[None]:
    """While this lasts, messages that nobody else shows appear on standard error; of several processes, the main one's.

    The others show errors and warnings alone.
    """
    logger, handler = logging.getLogger("hookbus"), _Messages()
    level, propagates = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO if is_main() else logging.ERROR)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagates


class _Messages(logging.Handler):
    """Log messages as lines."""

    @property
    def console(self) -> Console:
        """Where they go."""
        return errors()

    def emit(self, record: logging.LogRecord) -> None:
        level = "" if record.levelno == logging.INFO else f"[yellow]{record.levelname.lower()}:[/] "
        self.console.print(f"{_who()}{level}{escape(self.format(record))}", soft_wrap=True)
