"""Console output: tables and results on standard output, everything else on standard error."""

from __future__ import annotations

import errno
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape

from hookbus._cli.redaction import redact_text, redaction_scope
from hookbus._utils.values import escape_control_characters
from hookbus.distributed.process_group import is_main, rank, reported_by_main
from hookbus.errors import ConfigError, HookbusError, HookWarning, format_error, limit_lines

PIPED_WIDTH = 160
"""Width in columns of tables that are written to a file or a pipe, if COLUMNS does not set one."""

DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS})
"""Errors of a full, failing or read-only disk, which are not errors of the code: no traceback is printed."""


@contextmanager
def handle_errors() -> Iterator[None]:
    """Context manager that converts exceptions to messages and exit codes, and warnings to lines."""
    with redaction_scope(), _print_log_messages(), warnings.catch_warnings():
        warnings.simplefilter("always", HookWarning)
        warnings.showwarning = _print_warning
        try:
            yield
        except (typer.Exit, BrokenPipeError):
            raise
        except (Exception, KeyboardInterrupt, SystemExit) as error:
            raise typer.Exit(report_error(error)) from None


def report_error(error: BaseException) -> int:
    """Print the error that ended a command and return its exit code."""
    match error:
        case HookbusError():
            # An error that all ranks raise is printed by rank 0 only.
            if not reported_by_main(str(error)):
                _print_error_lines(error)
            return 2 if isinstance(error, ConfigError) else 1
        case KeyboardInterrupt():
            error_console().print("[yellow]interrupted[/]")
            return 130
        case SystemExit():
            code = "" if error.code is None else repr(error.code)
            print_error(f"Unexpected call of sys.exit({code}).")
            _print_notes(error)
        case OSError() if _is_output_error(error):
            _report_output_error(error)
        case OSError() if error.errno in DISK_ERRORS:
            print_error(format_error(error))
            _print_notes(error)
        case _:
            typer.echo(redact_text("".join(traceback.format_exception(error))), nl=False, err=True)
    return 1


@contextmanager
def tolerate_output_errors() -> Iterator[None]:
    """Context manager that reports an error of standard output without a change of the exit code."""
    try:
        yield
    except OSError as error:
        if isinstance(error, BrokenPipeError) or not _is_output_error(error):
            raise
        _report_output_error(error)


def _report_output_error(error: OSError) -> None:
    """Print that standard output cannot be written, and discard what is written to it later."""
    # Python flushes standard output at exit, which would raise a second time without this redirection.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    print_error(f"Standard output cannot be written: {error.strerror}.")


def output_console() -> Console:
    """Return the console of standard output, as wide as the terminal or COLUMNS. Only rank 0 writes to it."""
    columns = os.environ.get("COLUMNS")
    has_width = columns != "0" if columns else sys.stdout is not None and sys.stdout.isatty()
    return _Output(width=None if has_width else PIPED_WIDTH, highlight=False, soft_wrap=True, quiet=not is_main())


def escape_text(text: str) -> str:
    """Return a text in which neither markup of rich nor control characters have an effect on the terminal."""
    return escape(escape_control_characters(text, keep="\n\t"))


def print_error(message: str) -> None:
    """Print an error message."""
    _print_line(f"[red]error:[/] {escape_text(redact_text(message))}")


def print_json(value: Any) -> None:
    """Print a result as JSON, on rank 0 only. NaN and infinite values are null, since JSON has no such numbers."""
    from hookbus.checkpoint.atomic_files import format_json

    if is_main():
        typer.echo(format_json(value), nl=False)


def error_console() -> Console:
    """Return the console of standard error."""
    return Console(stderr=True, highlight=False)


class _Output(Console):
    """Console of standard output that raises on a closed pipe; rich calls `sys.exit` instead."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def _print_line(markup: str) -> None:
    """Print a line on standard error, with the rank unless it is rank 0."""
    error_console().print(markup if is_main() else f"rank {rank()}: {markup}", soft_wrap=True)


def _is_output_error(error: OSError) -> bool:
    """Return whether an error was raised while writing to standard output."""
    # An OSError carries no file name for a standard stream, so the module of the innermost frame decides.
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return str(frame.f_globals.get("__name__")).partition(".")[0] in ("rich", "typer", "click")


def _print_error_lines(error: HookbusError) -> None:
    """Print the lines of an error and its notes."""
    if isinstance(error, ConfigError):
        for problem in limit_lines(error.problems):
            _print_line(escape_text(redact_text(problem)))
    else:
        for line in limit_lines(str(error).splitlines(), "line"):
            print_error(line)
    _print_notes(error)


def _print_notes(error: BaseException) -> None:
    """Print the notes of an error, which name the hook and the point."""
    for note in getattr(error, "__notes__", ()):
        error_console().print(f"  {escape_text(redact_text(note))}", soft_wrap=True)


def _print_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    with suppress(OSError):  # standard error may be on the full disk: a warning must not end the run
        _print_line(f"[yellow]warning:[/] {escape_text(redact_text(str(message)))}")


@contextmanager
def _print_log_messages() -> Iterator[None]:
    """Context manager that prints log messages of hookbus on standard error.

    Rank 0 prints all levels from INFO; the other ranks print errors only.
    """
    logger, handler = logging.getLogger("hookbus"), _ConsoleHandler()
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


class _ConsoleHandler(logging.Handler):
    """Logging handler that prints each message on a line."""

    @property
    def console(self) -> Console:
        """Console of standard error."""
        return error_console()

    def emit(self, record: logging.LogRecord) -> None:
        level = "" if record.levelno == logging.INFO else f"[yellow]{record.levelname.lower()}:[/] "
        with suppress(OSError):  # as for warnings
            _print_line(f"{level}{escape_text(redact_text(self.format(record)))}")
