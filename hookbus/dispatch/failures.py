"""What becomes of a hook that fails: the policy, the counting, the report."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from hookbus._packages import package_of
from hookbus.clock import Clock
from hookbus.dispatch.compiling import Listener
from hookbus.errors import ConfigError, HookFailure, HookWarning, in_one_line, note_besides
from hookbus.hook import Hook

__all__ = ["IN_A_ROW", "REACH_ALL", "Failures", "annotate", "policy_of"]

T = TypeVar("T")

IN_A_ROW = 3
"""So many failures of one listener in a row disable its hook."""

REACH_ALL = frozenset({"on_exception", "after_run", "cleanup"})
"""Points that reach every listener, whatever the others do; failures are raised afterwards, together."""


@dataclass(slots=True)
class _Record:
    first: str
    package: str
    count: int = 0
    in_a_row: dict[str, int] = field(default_factory=dict)
    disabled: str = ""


def policy_of(plugin: object, error: Exception) -> str:
    """Either "raise", "warn" or "disable": the config's word, else warn for observers and raise for all others.

    A configuration that does not hold is raised by observers too: what was asked for cannot be had.
    """
    if not isinstance(plugin, Hook):
        return "raise"
    warns = plugin.observer and not isinstance(error, ConfigError)
    return plugin.config.on_error or ("warn" if warns else "raise")


def annotate(error: Exception, hook: str, plugin: object, point: str, clock: Clock) -> Exception:
    """Add to an exception which hook raised it, where and when. A StopIteration becomes a HookFailure.

    Args:
        error: what was raised.
        hook: the instance name of the hook.
        plugin: the hook.
        point: the point or action.
        clock: tells when.
    """
    note = (
        f"raised by hook {hook!r} ({package_of(plugin)}) at {point}, "
        f"epoch {clock.number('epoch')}, iteration {clock.number('iter')}"
    )
    if isinstance(error, StopIteration):
        return HookFailure(f"StopIteration {note}; in a loop it would have been taken for the end of the data.")
    error.add_note(note)
    return error


def _main_of(errors: list[BaseException], point: str) -> BaseException:
    """Ctrl-C or the like, with the others noted on it; else the one there is, or all of them as a group."""
    failures = [each for each in errors if isinstance(each, Exception)]
    if len(failures) == len(errors):
        several = f"{len(failures)} hooks failed at {point}"
        return failures[0] if len(failures) == 1 else ExceptionGroup(several, failures)
    main = next(each for each in errors if not isinstance(each, Exception))
    note_besides(main, (each for each in errors if each is not main))
    return main


class Failures:
    """The failures of hooks: which go on, which only warn.

    Args:
        changed: called when the dispatch tables have to be compiled again.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._records: dict[str, _Record] = {}
        self._collected: list[BaseException] = []
        self._let_through = 0  # the id of the exception that goes on from an event, perhaps into one outside of it

    def recover(self, error: BaseException, listener: Listener, clock: Clock, go_on: Callable[[], None]) -> bool:
        """A listener raised. Returns whether the exception goes on; otherwise the listeners after it were called."""
        if not isinstance(error, Exception):
            if listener.point in REACH_ALL:
                self._collected.append(error)
                go_on()
            return listener.point not in REACH_ALL
        fatal = id(error) == self._let_through or policy_of(listener.plugin, error) == "raise"
        shown = annotate(error, listener.hook, listener.plugin, listener.point, clock)
        if fatal and listener.point not in REACH_ALL:
            self._let_through = id(shown)
            if shown is not error:
                raise shown from error
            return True
        if fatal:
            self._collected.append(shown)
        else:
            self._count(error, listener.hook, listener.plugin, listener.point, clock)
        go_on()
        return False

    def guarded(self, work: Callable[[], T], hook: str, plugin: object, what: str, clock: Clock) -> T | None:
        """Do for a hook what it has asked for, outside of its listeners but under its policy.

        Args:
            work: what to do.
            hook: its instance name.
            plugin: the hook.
            what: what it is, in the place of a point.
            clock: tells when.

        Returns:
            What the work returned; None where it failed and the run goes on.
        """
        try:
            done = work()
        except Exception as error:
            if id(error) == self._let_through:
                raise
            shown = annotate(error, hook, plugin, what, clock)
            if policy_of(plugin, error) != "raise":
                self._count(error, hook, plugin, what, clock)
                return None
            if shown is error:
                raise
            raise shown from error
        if (record := self._records.get(hook)) is not None:
            record.in_a_row[what] = 0
        return done

    def raise_collected(self, point: str) -> None:
        """Raise what the listeners of a point that reaches all of them have raised.

        Raises:
            ExceptionGroup: several of them; a single one is raised as it is.
            KeyboardInterrupt, SystemExit: the first of these, with the others noted on it.
        """
        errors, self._collected = self._collected, []
        if not errors:
            return
        error = _main_of(errors, point)
        self._let_through = id(error)
        raise error

    def _count(self, error: Exception, hook: str, plugin: object, point: str, clock: Clock) -> None:
        """Count one failure; warn at the first, disable the hook where it is time for that."""
        what = in_one_line(error)
        record = self._records.get(hook)
        fresh = record is None
        if record is None:
            record = self._records[hook] = _Record(what, package_of(plugin))
        record.count += 1
        row = record.in_a_row[point] = record.in_a_row.get(point, 0) + 1
        if not record.disabled and (row >= IN_A_ROW or policy_of(plugin, error) == "disable"):
            record.disabled = f"epoch {clock.number('epoch')}, iteration {clock.number('iter')}"
        if fresh or record.disabled:
            self._changed()
        if fresh:
            after = "it is disabled" if record.disabled else "the run goes on"
            _warn(f"hook {hook!r} ({record.package}) failed at {point}: {what.rstrip('.')}; {after}.")

    def forget(self, hook: str) -> None:
        """A hook has left; its failures are not those of one that comes under its name."""
        self._records.pop(hook, None)

    def is_disabled(self, hook: str) -> bool:
        """Whether a hook gets no events any more, its cleanup excepted."""
        record = self._records.get(hook)
        return record is not None and bool(record.disabled)

    def watched(self, listener: Listener) -> Callable[..., Any]:
        """The listener's function; once its hook has failed, one that notices success as well."""
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
        """Say at the end of a run what was dropped, and begin to count again."""
        for hook, record in sorted(self._records.items()):
            if record.count > 1 or record.disabled:
                since = f", disabled since {record.disabled}" if record.disabled else ""
                _warn(
                    f"hook {hook!r} ({record.package}) failed {record.count} times{since}; what it should have done "
                    f"there is missing. The first failure: {record.first}"
                )
        self._records = {}


def _warn(message: str) -> None:
    warnings.warn(message, HookWarning, stacklevel=2)
