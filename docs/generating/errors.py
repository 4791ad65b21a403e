"""Exceptions and exit codes."""

from __future__ import annotations

import inspect

from docs.generating.tables import table
from hookbus import errors
from hookbus.runs.ending import EXIT_CODES

__all__ = ["exceptions", "exit_codes"]


def exit_codes() -> str:
    """What a process returns, by outcome of its run."""
    codes = {**EXIT_CODES, "the run file or the command line does not hold": 2}
    rows = sorted((code, outcome) for outcome, code in codes.items())
    return table(("exit code", "outcome"), ((str(code), outcome) for code, outcome in rows))


def exceptions() -> str:
    """Every exception, below the one that it is a kind of."""
    return _exception(errors.HookbusError, 0)


def _exception(cls: type[Exception], depth: int) -> str:
    line = f"{'    ' * depth}- `{cls.__name__}`: {inspect.cleandoc(cls.__doc__ or '').splitlines()[0]}"
    ours = [each for each in cls.__subclasses__() if each.__module__ == errors.__name__]
    return "\n".join([line, *(_exception(each, depth + 1) for each in ours)])
