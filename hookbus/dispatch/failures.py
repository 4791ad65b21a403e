"""Handling of exceptions of hooks: policies, counts and warnings."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, TypeVar

from hookbus._packages import package_of
from hookbus.dispatch.checks import is_configured
from hookbus.dispatch.compiling import Listener
from hookbus.errors import ConfigError, HookFailure, HookWarning, in_one_line, note_besides
from hookbus.when import Counters

__all__ = ["IN_A_ROW", "Failures", "annotate", "policy_of"]

T = TypeVar("T")

IN_A_ROW = 3
"""Number of consecutive failures of one listener that disables its hook."""


@dataclass(slots=True)
class _Record:
    first: str
    package: str
    count: int = 0
    in_a_row: dict[str, int] = field(default_factory=dict)
    disabled: str = ""


def policy_of(plugin: object, error: Exception) -> str:
    """Return the policy for an exception of a hook: "raise", "warn" or "disable".

    The default is "warn" for observers and "raise" for other hooks. A ConfigError is raised by observers as well,
    because the requested behavior is not available.
    """
    if not is_configured(plugin):
        return "raise"
    warns = plugin.observer and not isinstance(error, ConfigError)
    return plugin.config.on_error or ("warn" if warns else "raise")


def annotate(error: Exception, hook: str, plugin: object, point: str, clock: Counters) -> Exception:
    """Add a note with the hook, the point and the position in the run to an exception.

    Args:
        error: Exception of the hook.
        hook: Instance name of the hook.
        plugin: The hook.
        point: Point or action.
        clock: Counters of the run.

    Returns:
        The exception, or a HookFailure for a StopIteration.
    """
    note = (
        f"raised by hook {hook!r} ({package_of(plugin)}) at {point}, "
        f"epoch {clock.number('epoch')}, iteration {clock.number('iter')}"
    )
    if isinstance(error, StopIteration):
        # A `for` loop over the data interprets StopIteration as the end of the data and would end silently.
        return HookFailure(f"StopIteration {note}. Raise another exception type.")
    error.add_note(note)
    return error


def _main_of(errors: list[BaseException], point: str) -> BaseException:
    """Return one exception to raise for all: an exit request such as KeyboardInterrupt, or else a group.

    Other exceptions are added as notes to an exit request, which must not be wrapped so that callers recognize it.
    """
    failures = [error for error in errors if isinstance(error, Exception)]
    if len(failures) == len(errors):
        message = f"{len(failures)} hooks failed at {point}"
        return failures[0] if len(failures) == 1 else ExceptionGroup(message, failures)
    main = next(error for error in errors if not isinstance(error, Exception))
    note_besides(main, (error for error in errors if error is not main))
    return main


class Failures:
    """Policy and counts of the exceptions of hooks.

    Args:
        changed: Called when the dispatch tables must be compiled again.
        reach_all: Points that call every listener even if one of them fails. The exceptions are raised together
            afterwards.
    """

    def __init__(self, changed: Callable[[], None], reach_all: Collection[str]) -> None:
        self.reach_all = frozenset(reach_all)
        self._changed = changed
        self._records: dict[str, _Record] = {}
        self._collected: list[BaseException] = []
        # Id of the exception that propagates from an event. If the event is nested, the enclosing event must not apply
        # the policy of its own hook. A reference instead of the id would keep the frames of the traceback alive.
        self._let_through = 0

    def recover(self, error: BaseException, listener: Listener, clock: Counters, proceed: Callable[[], None]) -> bool:
        """Handle an exception of a listener.

        Args:
            error: The exception.
            listener: Listener that raised the exception.
            clock: Counters of the run.
            proceed: Function that calls the remaining listeners.

        Returns:
            Whether the exception propagates. If it does not, the remaining listeners were called.
        """
        # KeyboardInterrupt and SystemExit are not subject to the policy of the hook.
        if not isinstance(error, Exception):
            if listener.point in self.reach_all:
                self._collected.append(error)
                proceed()
            return listener.point not in self.reach_all
        fatal = id(error) == self._let_through or policy_of(listener.plugin, error) == "raise"
        annotated = annotate(error, listener.hook, listener.plugin, listener.point, clock)
        if fatal and listener.point not in self.reach_all:
            self._let_through = id(annotated)
            if annotated is not error:
                raise annotated from error
            return True
        if fatal:
            self._collected.append(annotated)
        else:
            self._count(error, listener.hook, listener.plugin, listener.point, clock)
        proceed()
        return False

    def guarded(self, work: Callable[[], T], hook: str, plugin: object, label: str, clock: Counters) -> T | None:
        """Execute an operation requested by a hook under the policy of the hook.

        Args:
            work: The operation.
            hook: Instance name of the hook.
            plugin: The hook.
            label: Name of the operation, used instead of the name of a point.
            clock: Counters of the run.

        Returns:
            Result of the operation; None if it failed and the run continues.
        """
        try:
            result = work()
        except Exception as error:
            if id(error) == self._let_through:
                raise
            annotated = annotate(error, hook, plugin, label, clock)
            if policy_of(plugin, error) != "raise":
                self._count(error, hook, plugin, label, clock)
                return None
            if annotated is error:
                raise
            raise annotated from error
        if (record := self._records.get(hook)) is not None:
            record.in_a_row[label] = 0
        return result

    def raise_collected(self, point: str) -> None:
        """Raise the exceptions that the listeners of a point in `reach_all` have raised.

        Raises:
            ExceptionGroup: If there are multiple exceptions. A single exception is raised unchanged.
            KeyboardInterrupt, SystemExit: If there is one, with the other exceptions added as notes.
        """
        errors, self._collected = self._collected, []
        if not errors:
            return
        error = _main_of(errors, point)
        self._let_through = id(error)
        raise error

    def _count(self, error: Exception, hook: str, plugin: object, point: str, clock: Counters) -> None:
        """Count a failure: log a warning for the first, and disable the hook if its policy requires it."""
        message = in_one_line(error)
        record = self._records.get(hook)
        is_first = record is None
        if record is None:
            record = self._records[hook] = _Record(message, package_of(plugin))
        record.count += 1
        consecutive = record.in_a_row[point] = record.in_a_row.get(point, 0) + 1
        if not record.disabled and (consecutive >= IN_A_ROW or policy_of(plugin, error) == "disable"):
            record.disabled = f"epoch {clock.number('epoch')}, iteration {clock.number('iter')}"
        # The first failure makes `watched` wrap the listeners of the hook; disabling removes them.
        if is_first or record.disabled:
            self._changed()
        if is_first:
            result = "The hook is disabled" if record.disabled else "Training continues"
            _warn(f"hook {hook!r} ({record.package}) failed at {point}: {message.rstrip('.')}. {result}.")

    def forget(self, hook: str) -> None:
        """Discard the counts of an unregistered hook, so that they do not apply to a later hook of the same name."""
        self._records.pop(hook, None)

    def is_disabled(self, hook: str) -> bool:
        """Return whether a hook is disabled. A disabled hook receives no events except `cleanup`."""
        record = self._records.get(hook)
        return record is not None and bool(record.disabled)

    def watched(self, listener: Listener) -> Callable[..., Any]:
        """Return the function of a listener; if its hook has failed, a function that resets the count on success."""
        record = self._records.get(listener.hook)
        if record is None:
            return listener.call
        call, point = listener.call, listener.point

        @functools.wraps(call)
        def watch(*args: Any, **kwargs: Any) -> None:
            call(*args, **kwargs)
            record.in_a_row[point] = 0

        return watch

    def report(self) -> None:
        """Log a warning for each hook with repeated failures at the end of a run, and reset the counts."""
        for hook, record in sorted(self._records.items()):
            if record.count > 1 or record.disabled:
                since = f", disabled since {record.disabled}" if record.disabled else ""
                _warn(
                    f"hook {hook!r} ({record.package}) failed {record.count} times{since}; its results are incomplete. "
                    f"First failure: {record.first}"
                )
        self._records = {}


def _warn(message: str) -> None:
    warnings.warn(message, HookWarning, stacklevel=2)
