"""Exception hierarchy of hookbus.

    HookbusError
    ├── PointError                    an unknown point, or arguments that a point does not accept
    ├── HookError                     an error in a hook
    │   ├── RegistrationError         a hook was rejected; nothing of it was registered
    │   ├── HookNotFoundError         no hook of the bus has the name (also a KeyError)
    │   ├── OrderError                before=/after= constraints that form a cycle
    │   ├── HookStopIterationError    a hook raised StopIteration, which a loop would read as "end of data"
    │   └── RejectedRecordsError      a tracker rejected some records; the others are written
    ├── PluginError                   an error in an installed plugin package
    │   ├── PluginNotFoundError       no installed package publishes the name
    │   ├── PluginConflictError       two packages publish the same name
    │   ├── PluginVersionError        a package that requires another version of hookbus
    │   └── PluginImportError         a package that cannot be imported
    ├── ConfigError                   an invalid run file or configuration; lists all problems
    │   └── ArgumentError             an unknown keyword argument of a function of hookbus (also a TypeError)
    ├── RequestError                  a request that cannot be fulfilled
    ├── ServiceError                  a service without a provider (also a LookupError)
    ├── MetricError                   an unknown or ambiguous metric name (also a KeyError)
    ├── LoopError                     a loop that cannot train: no loss, or no batch
    ├── WorkDirError                  a work directory that is in use or not writable
    ├── RankError                     ranks that lost their connection or made different collective calls
    └── CheckpointError               a checkpoint that cannot be written, found or loaded
        ├── CheckpointCorruptedError  a checkpoint whose checksum does not match
        └── CheckpointRefusedError    a checkpoint that another trainer is not to save

    HookWarning                       warning category of every error that is reported without ending the run
    HookDeprecationWarning            a HookWarning: a hook uses what a later version removes (also a FutureWarning)

Messages have the form `<where>: <what is invalid>, got <value>. <what to do>.`
"""

from __future__ import annotations

import difflib
import heapq
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from itertools import takewhile

__all__ = [
    "ArgumentError",
    "CheckpointCorruptedError",
    "CheckpointError",
    "CheckpointRefusedError",
    "ConfigError",
    "HookDeprecationWarning",
    "HookError",
    "HookNotFoundError",
    "HookStopIterationError",
    "HookWarning",
    "HookbusError",
    "LoopError",
    "MetricError",
    "OrderError",
    "PluginConflictError",
    "PluginError",
    "PluginImportError",
    "PluginNotFoundError",
    "PluginVersionError",
    "PointError",
    "RankError",
    "RegistrationError",
    "RejectedRecordsError",
    "RequestError",
    "ServiceError",
    "WorkDirError",
    "format_error",
    "format_path",
    "suggest_names",
]


MISSPELLING_CUTOFF = 0.85
"""difflib ratio above which a name is treated as a misspelled one."""

MAX_ERROR_LINES = 50
"""Maximum number of lines of a list of errors, in addition to the line that counts the others."""

MAX_SUGGESTED_NAMES = 40
MAX_COMPARED_NAMES = 200
MAX_NAME_LENGTH = 100
"""Limits of hints: names that are listed, names that are compared, and characters of a name that is compared."""

_hints_enabled: ContextVar[bool] = ContextVar("_hints_enabled", default=True)


class HookbusError(Exception):
    """Base class of the exceptions that hookbus raises."""


class PointError(HookbusError):
    """An unknown point, or arguments that a point does not accept."""


class HookError(HookbusError):
    """An error in a hook."""


class RegistrationError(HookError):
    """A rejected hook. The bus is unchanged."""


class HookNotFoundError(HookError, KeyError):
    """No hook of the bus has the name."""

    __str__ = Exception.__str__  # `KeyError.__str__` returns the repr of the message


class OrderError(HookError):
    """The before=/after= constraints of some listeners form a cycle."""


class HookStopIterationError(HookError, RuntimeError):
    """A hook raised StopIteration. The original exception is the `__cause__`."""


class RejectedRecordsError(HookError, ValueError):
    """A tracker rejected some records, at every attempt; all others are written. Raised by the methods of a `Writer`.

    Args:
        message: Reason of the first rejected record.
        names: Name of each rejected record.
        kind: Type of the records in the plural.

    Attributes:
        names: Name of each rejected record.
        kind: Type of the records in the plural.
    """

    def __init__(self, message: str, names: Iterable[str], kind: str = "numbers") -> None:
        self.names, self.kind = list(names), kind
        super().__init__(message)


class PluginError(HookbusError):
    """An error in an installed plugin package."""


class PluginNotFoundError(PluginError):
    """No installed package publishes the requested name."""


class PluginConflictError(PluginError):
    """Two installed packages publish the same name."""


class PluginVersionError(PluginError):
    """A plugin package requires another version of hookbus."""


class PluginImportError(PluginError):
    """A requested plugin package that cannot be imported."""


class ConfigError(HookbusError):
    """An invalid configuration. Its message lists at most 50 lines and the number of further errors.

    Args:
        problems: One message per error, each with its location; or a single message.

    Attributes:
        problems: All messages as a list.
    """

    def __init__(self, problems: str | Iterable[str]) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(limit_lines(self.problems)))


class ArgumentError(ConfigError, TypeError):
    """An unknown keyword argument of a function of hookbus."""


class RequestError(HookbusError):
    """A request that cannot be fulfilled."""


class ServiceError(HookbusError, LookupError):
    """A service without a provider."""


class MetricError(HookbusError, KeyError):
    """An unknown or ambiguous metric name."""

    __str__ = Exception.__str__  # as above


class LoopError(HookbusError):
    """A loop that cannot train: no loss, or no batch."""


class WorkDirError(HookbusError):
    """A work directory that is in use by another run, or that is not writable."""


class RankError(HookbusError):
    """Ranks that lost their connection, or that made different collective calls."""


class CheckpointError(HookbusError):
    """A checkpoint that cannot be written, found or loaded."""


class CheckpointCorruptedError(CheckpointError):
    """A corrupted checkpoint: the checksum does not match."""


class CheckpointRefusedError(CheckpointError):
    """A checkpoint that another trainer is not to save, because a hook has aborted the run."""


class HookWarning(UserWarning):
    """Warning category of errors that are reported without ending the run."""


class HookDeprecationWarning(HookWarning, FutureWarning):
    """A hook uses a point, an argument or a setting that a later version removes. Issued once per hook and use."""


def suggest_names(name: str, known: Iterable[str]) -> str:
    """Return the hint that ends a message about an unknown name.

    Close matches have a `difflib` ratio of at least 0.6, and at most 0.2 less than the closest one. At most three are
    listed.

    Args:
        name: The unknown name.
        known: The accepted names.

    Returns:
        " Did you mean 'patience'?" if there are close matches, else " Available: a, b.", or "" if `known` is empty.
    """
    if not _hints_enabled.get():
        return ""
    names = sorted({other for other in known if len(other) <= MAX_NAME_LENGTH})
    # The time of a comparison grows with the product of the lengths.
    compared = _select_similar(name, names) if len(name) <= MAX_NAME_LENGTH else []
    near = difflib.get_close_matches(name, compared, n=3, cutoff=0.6)
    ratios = [difflib.SequenceMatcher(None, other, name).ratio() for other in near]
    near = [other for other, ratio in zip(near, ratios, strict=True) if ratio >= ratios[0] - 0.2]
    if near:
        return f" Did you mean {' or '.join(repr(n) for n in near)}?"
    if not names:
        return ""
    more = f" and {len(names) - MAX_SUGGESTED_NAMES:,} more" if len(names) > MAX_SUGGESTED_NAMES else ""
    return f" Available: {', '.join(names[:MAX_SUGGESTED_NAMES])}{more}."


def _select_similar(name: str, names: list[str]) -> list[str]:
    """Return the names that are compared with an unknown one: all, or those with the longest common prefix."""

    def get_rank(other: str) -> tuple[int, int]:
        prefix = takewhile(lambda pair: pair[0] == pair[1], zip(name, other, strict=False))
        return -len(list(prefix)), abs(len(name) - len(other))

    return names if len(names) <= MAX_COMPARED_NAMES else heapq.nsmallest(MAX_COMPARED_NAMES, names, key=get_rank)


@contextmanager
def omit_hints() -> Iterator[None]:
    """Context manager in which `suggest_names` returns "", for errors after the first 50, which are only counted."""
    token = _hints_enabled.set(False)
    try:
        yield
    finally:
        _hints_enabled.reset(token)


def limit_lines(messages: Iterable[str], noun: str = "error") -> list[str]:
    """Return the first messages with at most 50 lines together, and a line that counts the others.

    Args:
        messages: The messages; a message of several lines is not divided unless it is the first one.
        noun: Noun of the count in the singular. Default: "error".
    """
    texts, lines = list(messages), 0
    for index, text in enumerate(texts):
        lines += text.count("\n") + 1
        if lines > MAX_ERROR_LINES:
            listed = texts[:index] or text.split("\n")[:MAX_ERROR_LINES]
            left = len(texts) - max(index, 1)
            return [*listed, f"and {left:,} more {noun}{'' if left == 1 else 's'}." if left else "..."]
    return texts


def format_path(path: str | os.PathLike[str]) -> str:
    """Return a path for a message, relative to the current directory if it is inside it.

    A path with control characters or bytes that are not UTF-8 is quoted and escaped.

    Args:
        path: Path, or a part of it.
    """
    # An escape sequence in a name would change the terminal, and a newline would look like another message.
    text = get_relative_path(path)
    return text if text.isprintable() else ascii(text)


def get_relative_path(path: str | os.PathLike[str]) -> str:
    """Return a path relative to the current directory if it is inside it, else unchanged.

    Args:
        path: Path, or a part of it.
    """
    text = os.fspath(path)
    with suppress(OSError):  # the current directory may have been removed
        return text.removeprefix(os.path.join(os.getcwd(), "")) or text
    return text


def format_error(error: BaseException) -> str:
    """Return the type and the message of an error on one line: "ValueError: no such layer".

    Args:
        error: The exception.
    """
    return _prefix_type(error, " ".join(_get_message(error).split()))


def format_error_first_line(error: BaseException) -> str:
    """Return the type of an error and the first line of its message."""
    # torch appends a multi-line C++ stack trace to its messages.
    return _prefix_type(error, next(iter(_get_message(error).strip().splitlines()), ""))


def _get_message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as broken:  # a broken `__str__` must not replace the error that is reported
        return f"(message not available: __str__ raised {type(broken).__name__})"


def _prefix_type(error: BaseException, text: str) -> str:
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def add_failure_notes(error: BaseException, failures: Iterable[BaseException]) -> None:
    """Add a note to an error for each additional failure, including the notes of that failure.

    Exception groups are flattened.
    """
    for failure in failures:
        if isinstance(failure, BaseExceptionGroup):
            add_failure_notes(error, failure.exceptions)
            continue
        notes = "; ".join(getattr(failure, "__notes__", []))
        error.add_note(f"also raised: {format_error(failure)}" + (f" ({notes})" if notes else ""))
