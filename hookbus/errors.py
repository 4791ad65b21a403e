"""Every exception of hookbus, in one tree.

    HookbusError
    ├── PointError              an unknown point, or arguments that a point does not have
    ├── HookError               something is wrong with a hook
    │   ├── RegistrationError   a hook was refused; nothing of it was registered
    │   ├── OrderError          before=/after= wishes that contradict each other
    │   └── HookFailure         a hook raised StopIteration, which must not be read as "end of data"
    ├── PluginError             something is wrong with an installed plugin package
    │   ├── PluginNotFound      a name that no installed package offers
    │   ├── PluginClash         two packages offer one name
    │   ├── PluginVersionError  a package that wants another hookbus
    │   └── PluginImportError   a package that cannot be imported
    ├── ConfigError             a run file or a configuration that does not hold; lists all problems
    ├── RequestError            a request that cannot be met
    ├── ServiceError            a service that nobody provides (also a LookupError)
    ├── MetricError             a metric name that means nothing, or several things (also a KeyError)
    ├── LoopError               a loop that cannot train: no loss, no data, no limit
    ├── WorkDirError            a work directory in use, or one that cannot be written
    ├── RankError               processes that have lost each other, or that do different things
    └── CheckpointError         a checkpoint that cannot be written, found or read
        └── CheckpointDamaged   bytes that are not the bytes that were saved

    HookWarning                 the warning category of everything that is reported and goes on

Messages are sentences: who, what, where, and what would be right.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "CheckpointDamaged",
    "CheckpointError",
    "ConfigError",
    "HookError",
    "HookFailure",
    "HookWarning",
    "HookbusError",
    "LoopError",
    "MetricError",
    "OrderError",
    "PluginClash",
    "PluginError",
    "PluginImportError",
    "PluginNotFound",
    "PluginVersionError",
    "PointError",
    "RankError",
    "RegistrationError",
    "RequestError",
    "ServiceError",
    "WorkDirError",
    "did_you_mean",
    "first_line",
    "in_one_line",
    "note_besides",
]


class HookbusError(Exception):
    """Base of every exception that hookbus raises on purpose."""


class PointError(HookbusError):
    """An unknown point, or arguments that a point does not have."""


class HookError(HookbusError):
    """Something is wrong with a hook."""


class RegistrationError(HookError):
    """A hook was refused. The bus is as it was before."""


class OrderError(HookError):
    """The before=/after= wishes of some listeners contradict each other."""


class HookFailure(HookError, RuntimeError):
    """A hook raised StopIteration; its own exception is the cause of this one."""


class PluginError(HookbusError):
    """Something is wrong with an installed plugin package."""


class PluginNotFound(PluginError):
    """No installed package offers this name."""


class PluginClash(PluginError):
    """Two installed packages offer the same name."""


class PluginVersionError(PluginError):
    """A plugin package requires another version of hookbus."""


class PluginImportError(PluginError):
    """A plugin package that was asked for cannot be imported."""


class ConfigError(HookbusError):
    """A configuration that does not hold.

    Args:
        problems: one sentence per mistake, each complete with its place.
    """

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(self.problems))


class RequestError(HookbusError):
    """A request that cannot be met here."""


class ServiceError(HookbusError, LookupError):
    """Nobody provides this service."""


class MetricError(HookbusError, KeyError):
    """A metric name that means nothing here, or more than one thing."""

    def __str__(self) -> str:  # KeyError would show the repr of the message
        return str(self.args[0]) if self.args else ""


class LoopError(HookbusError):
    """The loop cannot go on: no loss, no data, or no limit."""


class WorkDirError(HookbusError):
    """A work directory that is in use by another run, or that cannot be written."""


class RankError(HookbusError):
    """The processes of a run have lost each other, or do different things."""


class CheckpointError(HookbusError):
    """A checkpoint that cannot be written, found or read."""


class CheckpointDamaged(CheckpointError):
    """The bytes of a checkpoint are not the bytes that were saved."""


class HookWarning(UserWarning):
    """Something went wrong, was reported, and the run goes on."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a message about a wrong name: near names, else all of them.

    Args:
        name: what was written.
        known: what would have been right.

    Returns:
        " Did you mean 'patience'?", or " Available: a, b.", or "" when nothing is known.
    """
    names = sorted(set(known))
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    if near:
        return f" Did you mean {' or '.join(repr(n) for n in near)}?"
    if names:
        return f" Available: {', '.join(names)}."
    return ""


def in_one_line(error: BaseException) -> str:
    """An error as it stands in a sentence: "ValueError: no such layer"; its kind alone where it has no text."""
    return _with_kind(error, " ".join(_text_of(error).split()))


def first_line(error: BaseException) -> str:
    """The kind of an error, and the first line of what it says: torch adds many lines on where it has failed."""
    return _with_kind(error, next(iter(_text_of(error).strip().splitlines()), ""))


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as broken:  # it must not take the place of what it was to report
        return f"(its text cannot be had: {type(broken).__name__})"


def _with_kind(error: BaseException, text: str) -> str:
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def note_besides(error: BaseException, failures: Iterable[BaseException]) -> None:
    """Note on an error what else has failed, each in one line, with what is noted on it; groups one by one."""
    for failure in failures:
        if isinstance(failure, BaseExceptionGroup):
            note_besides(error, failure.exceptions)
            continue
        notes = "; ".join(getattr(failure, "__notes__", []))
        error.add_note(f"also raised: {in_one_line(failure)}" + (f" ({notes})" if notes else ""))
