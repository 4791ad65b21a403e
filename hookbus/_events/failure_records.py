"""Failures of hooks: exceptions with a note of their origin, merged if there are multiple, and counts by hook."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hookbus._events.ordering import Listener
from hookbus._events.points import Counters
from hookbus._utils.packages import package_label
from hookbus.errors import HookStopIterationError, HookWarning, add_failure_notes, format_error


def annotate(error: Exception, hook: str, plugin: object, point: str, clock: Counters) -> Exception:
    """Add a note with the hook, the point and the position in the run to an exception.

    Returns:
        The exception, or a HookStopIterationError for a StopIteration.
    """
    note = (
        f"raised by hook {hook!r} ({package_label(plugin)}) at {point}, "
        f"epoch {clock.current('epoch')}, iteration {clock.current('iter')}"
    )
    if isinstance(error, StopIteration):
        # A `for` loop over the data interprets StopIteration as the end of the data and would end silently.
        return HookStopIterationError(f"StopIteration {note}. Raise another exception type.")
    error.add_note(note)
    return error


def merge_exceptions(errors: Sequence[BaseException], point: str) -> BaseException:
    """Return one exception to raise for all: an exit request such as KeyboardInterrupt, or else a group.

    Other exceptions are added as notes to an exit request, which must not be wrapped so that callers recognize it.
    """
    failures = [error for error in errors if isinstance(error, Exception)]
    if len(failures) == len(errors):
        message = f"{len(failures)} hooks failed at {point}"
        return failures[0] if len(failures) == 1 else ExceptionGroup(message, failures)
    main = next(error for error in errors if not isinstance(error, Exception))
    add_failure_notes(main, (error for error in errors if error is not main))
    return main


@dataclass(slots=True)
class FailureRecord:
    """Failures of one hook.

    Attributes:
        first: Message of the first failure.
        package: Package of the hook and its version.
        count: Number of failures.
        consecutive: Number of consecutive failures by point.
        disabled: Position in the run at which the hook was disabled, "" if it is enabled.
    """

    first: str
    package: str
    count: int = 0
    consecutive: dict[str, int] = field(default_factory=dict)
    disabled: str = ""

    def describe_first(self, hook: str, point: str) -> str:
        """Return the message about the first failure."""
        result = "The hook is disabled" if self.disabled else "Training continues"
        return f"hook {hook!r} ({self.package}) failed at {point}: {self.first.rstrip('.')}. {result}."


class FailureCounts(dict[str, FailureRecord]):
    """Failures by hook. Hooks without failures have no record."""

    def add(self, error: Exception, hook: str, plugin: object, point: str) -> FailureRecord:
        """Count a failure of a hook at a point.

        Returns:
            Updated record of the hook.
        """
        if hook not in self:
            self[hook] = FailureRecord(format_error(error), package_label(plugin))
        record = self[hook]
        record.count += 1
        record.consecutive[point] = record.consecutive.get(point, 0) + 1
        return record

    def succeed(self, hook: str, point: str) -> None:
        """Reset the number of consecutive failures of a hook at a point."""
        if hook in self:
            self[hook].consecutive[point] = 0

    def reset_on_success(self, listener: Listener) -> Callable[..., Any]:
        """Return the function of a listener; if its hook has failed, a function that resets the count on success."""
        record = self.get(listener.hook)
        if record is None:
            return listener.call
        call, point = listener.call, listener.point

        @functools.wraps(call)
        def watch(*args: Any, **kwargs: Any) -> None:
            call(*args, **kwargs)
            record.consecutive[point] = 0

        return watch

    def is_disabled(self, hook: str) -> bool:
        """Return whether a hook is disabled. A disabled hook receives no events except `cleanup`."""
        return hook in self and bool(self[hook].disabled)

    def report(self) -> None:
        """Log a warning for each hook with repeated failures at the end of a run, and reset the counts."""
        for hook, record in sorted(self.items()):
            if record.count > 1 or record.disabled:
                since = f", disabled since {record.disabled}" if record.disabled else ""
                message = f"hook {hook!r} ({record.package}) failed {record.count} times{since}"
                warnings.warn(
                    f"{message}; its results are incomplete. First failure: {record.first}", HookWarning, stacklevel=1
                )
        self.clear()
