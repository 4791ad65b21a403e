"""Exceptions and exit codes."""

from __future__ import annotations

import inspect

from docs.generating.tables import table
from hookbus import errors
from hookbus._run.finalize import EXIT_CODES

__all__ = ["exceptions", "exit_codes"]


def exit_codes() -> str:
    """Return the table of exit codes and outcomes."""
    codes = {**EXIT_CODES, "invalid run file or command line": 2}
    rows = sorted((code, outcome) for outcome, code in codes.items())
    return table(("exit code", "outcome"), ((str(code), outcome) for code, outcome in rows))


def exceptions() -> str:
    """Return the tree of exceptions as a nested list."""
    return _exception(errors.HookbusError, 0)


def _exception(cls: type[Exception], depth: int) -> str:
    line = f"{'    ' * depth}- `{cls.__name__}`: {inspect.cleandoc(cls.__doc__ or '').splitlines()[0]}"
    subclasses = [subclass for subclass in cls.__subclasses__() if subclass.__module__ == errors.__name__]
    return "\n".join([line, *(_exception(subclass, depth + 1) for subclass in subclasses)])
