"""The dispatch tables of a bus: compiled on first use, forgotten when members change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from hookbus.dispatch.actions import Actions, Step
from hookbus.dispatch.checks import Implementation
from hookbus.dispatch.compiling import Listener, compile_point, ordered
from hookbus.dispatch.failures import REACH_ALL, Failures
from hookbus.dispatch.listeners import listener_of, priority_of
from hookbus.dispatch.points import fill_for, finally_for, first_for, names_for
from hookbus.lifecycle import Point

if TYPE_CHECKING:
    from hookbus.run import Run

__all__ = ["Calls", "Order", "Table", "Wrap"]

Order = Literal["nested", "ascending"]
Wrap = Callable[[Listener], Callable[..., Any]]
Implementations = Callable[[str], Iterable[Implementation]]
"""For a point or an action, its implementations in the order of registration."""


class Calls:
    """One attribute per point: the function that fires it, or None where nobody listens; and one per action.

    The loop's own path: `if calls.after_forward: calls.after_forward(batch=batch, ...)`. Python reads attributes
    several times slower where there is a `__getattr__`, so there is none: what is not compiled yet is a function that
    compiles itself when it is called.

    Args:
        make: compiles what stands under a name.
        lock: held while something is compiled or forgotten. A thread may fire a point at any time.
    """

    def __init__(self, make: Callable[[str], Any], lock: AbstractContextManager[Any]) -> None:
        self._make, self._lock = make, lock
        self._made: set[str] = set()

    def get(self, name: str) -> Any:
        """What stands under a name, compiled.

        Raises:
            AttributeError: there is no such point and no such action.
        """
        with self._lock:
            if name not in self._made:
                setattr(self, name, self._make(name))
                self._made.add(name)
            return getattr(self, name)

    def forget(self, names: Iterable[str]) -> None:
        """What stands under these names is compiled again on next use: members have changed, or a point is new."""
        with self._lock:
            for name in names:
                self._made.discard(name)
                setattr(self, name, partial(self._compile_and_call, name))

    def _compile_and_call(self, name: str, *given: Any, **arguments: Any) -> Any:
        call = self.get(name)
        return None if call is None else call(*given, **arguments)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


class Table:
    """Turns implementations into functions that call them.

    Args:
        order: "nested" or "ascending".
        implementations: of the members.
        changed: called when the tables have to be compiled again.

    Attributes:
        points: every point, by name.
        steps: the loop's own steps, by action.
        given: priorities that were given at registration, by instance name.
        failures: of the hooks that only warn.
        wrap: makes each listener's function into another one; None for no change.
        around_work: `around_work(hook, what, work)` does what a hook has asked for; None where it is just done.
    """

    def __init__(self, order: Order, implementations: Implementations, changed: Callable[[], None]) -> None:
        self.order = order
        self.points: dict[str, Point] = {}
        self.steps: dict[str, Step] = {}
        self.given: dict[str, int] = {}
        self.failures = Failures(changed)
        self.wrap: Wrap | None = None
        self.around_work: Callable[[str, str, Callable[[], Any]], Any] | None = None
        self._implementations = implementations
        self._actions = Actions(self._of_action)

    def compile(self, name: str, run: Run) -> Callable[..., Any] | None:
        """The function that fires a point or carries an action out; None where it would do nothing.

        Raises:
            AttributeError: there is no such point and no such action.
        """
        if name in self.steps:
            return self._actions.step(name, self.steps[name])
        if name not in self.points:
            raise AttributeError(name)
        listeners = self.listeners(name, run)
        first, last = first_for(name, run), finally_for(name, run)
        if name in REACH_ALL:
            last = [f"_report({name!r})", *last]
        if not (listeners or first or last):
            return None
        return self._compiled(name, listeners, run, first, last)

    def cleanup_of(self, hook: str, run: Run) -> Callable[..., Any]:
        """The function that lets one hook clean up, for a hook that leaves a run: the end of it will not reach it."""
        own = [each for each in self.listeners("cleanup", run) if each.hook == hook]
        return self._compiled("cleanup", own, run, (), ["_report('cleanup')"])

    def listeners(self, point: str, run: Run) -> list[Listener]:
        """The listeners of a point in time order; hooks that are disabled, or of other ranks, left out.

        Raises:
            OrderError: the before=/after= wishes contradict each other.
        """
        spec, found = self.points[point], []
        for each in self._of(point, run):
            listener = listener_of(each, spec, self.given.get(each.hook))
            listener.call = self.failures.watched(listener)
            if self.wrap is not None:
                listener.call = self.wrap(listener)
            found.append(listener)
        return ordered(found, reverse=spec.reverse and self.order == "nested")

    def check_order(self, run: Run) -> None:
        """See that the order at every point can be told.

        Raises:
            OrderError: the before=/after= wishes contradict each other.
        """
        for point in self.points:
            self.listeners(point, run)

    def forget(self, hook: str) -> None:
        """A hook has left: another one may come under its name."""
        self.given.pop(hook, None)
        self.failures.forget(hook)

    def _compiled(
        self, name: str, listeners: list[Listener], run: Run, first: Sequence[str], last: Sequence[str]
    ) -> Callable[..., None]:
        return compile_point(
            self.points[name],
            listeners,
            run.clock,
            run=run,
            fill=fill_for(self.points[name]),
            names={**names_for(run), "_report": self.failures.raise_collected},
            recover=self.failures.recover,
            first=first,
            finally_=last,
        )

    def _of(self, name: str, run: Run) -> list[Implementation]:
        return [each for each in self._implementations(name) if self._takes_part(each, name, run)]

    def _takes_part(self, found: Implementation, name: str, run: Run) -> bool:
        if self.failures.is_disabled(found.hook) and name != "cleanup":
            return False
        return run.serves(found.plugin)

    def _of_action(self, action: str) -> list[Implementation]:
        """The implementations of an action, outermost first."""
        found = [each for each in self._implementations(action) if not self.failures.is_disabled(each.hook)]
        return sorted(found, key=self._depth)

    def _depth(self, found: Implementation) -> tuple[int, int]:
        """How deep inside it lies: tryfirst and trylast win over numbers."""
        side = bool(found.options.get("trylast")) - bool(found.options.get("tryfirst"))
        return side, priority_of(found, self.given.get(found.hook))[0]
