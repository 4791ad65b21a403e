"""Exceptions of hooks as they are raised: with a note of their origin, and merged if there are multiple."""

from __future__ import annotations

from collections.abc import Sequence

from hookbus._events.schedules import Counters
from hookbus._utils.packages import package_label
from hookbus.errors import HookStopIterationError, add_failure_notes


def annotate(error: Exception, hook: str, plugin: object, point: str, clock: Counters) -> Exception:
    """Add a note with the hook, the point and the position in the run to an exception.

    Args:
        error: Exception of the hook.
        hook: Instance name of the hook.
        plugin: The hook.
        point: Point or action.
        clock: Counters of the run.

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
