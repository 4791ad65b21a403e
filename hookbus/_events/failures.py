"""Policy for exceptions of hooks.

    exception                      hook                                           result
    -----------------------------  ---------------------------------------------  --------------------------------
    KeyboardInterrupt, SystemExit  any                                            raised
    raised by a nested event       any                                            raised
    raised in an action            any                                            raised
    ConfigError                    without `on_error`                             raised
    any other                      `on_error="raise"`, default except observers   raised
                                   `on_error="warn"`, default of observers        warning, disabled after 3
                                                                                  consecutive failures of a listener
                                   `on_error="disable"`                           warning, disabled

*Raised*: the exception propagates and the remaining listeners are not called. At `on_exception`, `after_run` and
`cleanup`, every listener is called first, and multiple exceptions are merged into one.

*Warning*: the remaining listeners are called and training continues. The first failure of a hook is logged immediately,
and the number of failures at the end of the run. A *disabled* hook receives only `cleanup`. What it registered leaves.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, TypeVar

from hookbus._events.checks import is_configured
from hookbus._events.failure_records import FailureCounts, annotate, merge_exceptions
from hookbus._events.ordering import Listener
from hookbus._events.points import Counters
from hookbus.errors import ConfigError, HookWarning

if TYPE_CHECKING:
    from hookbus._events.bus import EventBus

T = TypeVar("T")

MAX_CONSECUTIVE_FAILURES = 3
"""Number of consecutive failures of one listener that disables its hook."""


def get_policy(plugin: object, error: Exception) -> str:
    """Return the policy for an exception of a hook: "raise", "warn" or "disable"."""
    if not is_configured(plugin):
        return "raise"
    # A ConfigError means that the requested behavior is not available, which is an error of observers as well.
    warns = plugin.observer and not isinstance(error, ConfigError)
    return plugin.config.on_error or ("warn" if warns else "raise")


class Failures:
    """Application of the policy to the exceptions of hooks.

    Args:
        bus: Bus of the hooks.
        non_aborting: Points that call every listener even if one of them fails.

    Attributes:
        counts: Failures by hook.
    """

    def __init__(self, bus: EventBus, non_aborting: Collection[str]) -> None:
        self.non_aborting = frozenset(non_aborting)
        self.counts = FailureCounts()
        self._bus = bus
        self._pending: list[BaseException] = []
        # Id of the exception that propagates from an event. If the event is nested, the enclosing event must not apply
        # the policy of its own hook. A reference instead of the id would keep the frames of the traceback alive.
        self._propagating_id = 0

    def handle_exception(
        self, error: BaseException, listener: Listener, clock: Counters, proceed: Callable[[], None]
    ) -> bool:
        """Handle an exception of a listener. `proceed` calls the remaining listeners.

        Returns:
            Whether the exception propagates. If it does not, the remaining listeners were called.
        """
        non_aborting = listener.point in self.non_aborting
        if not isinstance(error, Exception):
            if non_aborting:
                self._pending.append(error)
                proceed()
            return not non_aborting
        fatal = id(error) == self._propagating_id or get_policy(listener.plugin, error) == "raise"
        annotated = annotate(error, listener.hook, listener.plugin, listener.point, clock)
        if fatal and not non_aborting:
            self._propagating_id = id(annotated)
            if annotated is not error:
                raise annotated from error
            return True
        if fatal:
            self._pending.append(annotated)
        else:
            self._count(error, listener.hook, listener.plugin, listener.point, clock)
        proceed()
        return False

    def call_guarded(self, work: Callable[[], T], hook: str, plugin: object, label: str, clock: Counters) -> T | None:
        """Execute an operation requested by a hook under the policy of the hook. `label` replaces the point.

        Returns:
            Result of the operation; None if it failed and the run continues.
        """
        try:
            result = work()
        except Exception as error:
            if id(error) == self._propagating_id:
                raise
            annotated = annotate(error, hook, plugin, label, clock)
            if get_policy(plugin, error) != "raise":
                self._count(error, hook, plugin, label, clock)
                return None
            if annotated is error:
                raise
            raise annotated from error
        self.counts.succeed(hook, label)
        return result

    def raise_pending(self, point: str) -> None:
        """Raise the exceptions that the listeners of a point in `non_aborting` have raised.

        Raises:
            ExceptionGroup: If there are multiple exceptions. A single exception is raised unchanged.
            KeyboardInterrupt, SystemExit: If there is one, with the other exceptions added as notes.
        """
        errors, self._pending = self._pending, []
        if errors:
            error = merge_exceptions(errors, point)
            self._propagating_id = id(error)
            raise error

    def _count(self, error: Exception, hook: str, plugin: object, point: str, clock: Counters) -> None:
        """Count a failure: log a warning for the first, and disable the hook if its policy requires it."""
        record = self.counts.add(error, hook, plugin, point)
        limit = 1 if get_policy(plugin, error) == "disable" else MAX_CONSECUTIVE_FAILURES
        is_last = not record.disabled and record.consecutive[point] >= limit
        if is_last:
            record.disabled = f"epoch {clock.current('epoch')}, iteration {clock.current('iter')}"
        # The first failure makes `reset_on_success` wrap the listeners of the hook; disabling removes them.
        if record.count == 1 or is_last:
            self._bus.invalidate()
        if is_last:
            self._bus.release(hook, plugin)
        if record.count == 1:
            warnings.warn(record.describe_first(hook, point), HookWarning, stacklevel=1)
