"""Dispatch tables of a bus, compiled on first use and invalidated by changes of the registered plugins."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol

from hookbus.dispatch.actions import Actions, Step
from hookbus.dispatch.checks import Implementation
from hookbus.dispatch.compiling import Listener, compile_point, ordered
from hookbus.dispatch.failures import Failures
from hookbus.dispatch.listeners import listener_of, priority_of
from hookbus.points import Point
from hookbus.when import Counters, CounterView

__all__ = ["Calls", "EventRun", "Order", "Statements", "Table", "Wrap"]

Order = Literal["nested", "ascending"]
Wrap = Callable[[Listener], Callable[..., Any]]
Implementations = Callable[[str], Iterable[Implementation]]
"""Function that returns the implementations of a point or an action, in registration order."""
Statements = Callable[[str, Any], Sequence[str]]
"""Function of a point and a run that returns statements of the generated function of the point."""


class EventRun(Protocol):
    """Run whose events a bus emits.

    Attributes:
        alive: Whether the run is active.
        pending: Whether requests are to be processed at the next boundary.
    """

    alive: bool
    pending: bool

    @property
    def clock(self) -> Counters:
        """Counters of the run."""

    def serves(self, plugin: object) -> bool:
        """Return whether a plugin receives the events of this process."""

    def members_changed(self) -> None:
        """Respond to a change of the registered plugins."""


class Calls:
    """Compiled function of each point and action, as attributes.

    The function of a point is None if the point has no listeners. The training loop uses
    `if calls.after_forward: calls.after_forward(batch=batch, ...)`.

    Args:
        make: Function that compiles the function of a name.
        lock: Lock acquired during compilation and invalidation. Any thread may emit a point at any time.
    """

    def __init__(self, make: Callable[[str], Any], lock: AbstractContextManager[Any]) -> None:
        # A class with `__getattr__` makes all attribute reads several times slower. Therefore an attribute that is not
        # compiled is set to a function that compiles it when called.
        self._make, self._lock = make, lock
        self._made: set[str] = set()

    def get(self, name: str) -> Any:
        """Return the compiled function of a point or action, None if it would do nothing.

        Raises:
            AttributeError: If the point or action does not exist.
        """
        with self._lock:
            if name not in self._made:
                setattr(self, name, self._make(name))
                self._made.add(name)
            return getattr(self, name)

    def forget(self, names: Iterable[str]) -> None:
        """Invalidate the functions of the given names, which are compiled again on next use."""
        with self._lock:
            for name in names:
                self._made.discard(name)
                setattr(self, name, partial(self._compile_and_call, name))

    def _compile_and_call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        call = self.get(name)
        return None if call is None else call(*args, **kwargs)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


class Table:
    """Event tables, from which the functions of points and actions are compiled.

    Args:
        order: "nested" or "ascending".
        implementations: Function that returns the implementations of the registered plugins.
        changed: Called when the tables must be compiled again.
        prologue: Function that returns the statements before the listeners of a point.
        epilogue: Function that returns the statements after the listeners of a point.
        default_arguments: Function that returns the expressions that replace omitted arguments of a point, by name.
        namespace: Function that returns the globals of these statements and expressions for a run.
        counter_view: Function that returns the view of the counters of a run from a point.
        reach_all: Points that call every listener even if one of them fails.
        actions: Spec class of the actions.

    Attributes:
        points: Points by name.
        steps: Steps of the loop by action.
        given: Priorities passed at registration, by instance name.
        failures: Policy for the exceptions of hooks, and their counts.
        wrap: Function that replaces the function of each listener, None for no replacement.
        around_work: `around_work(hook, label, work)` executes an operation requested by a hook; None to call it
            directly.
    """

    def __init__(
        self,
        order: Order,
        implementations: Implementations,
        changed: Callable[[], None],
        *,
        prologue: Statements,
        epilogue: Statements,
        default_arguments: Callable[[Point], dict[str, str]],
        namespace: Callable[[Any], dict[str, Any]],
        counter_view: Callable[[Any, Point], CounterView],
        reach_all: Collection[str],
        actions: type,
    ) -> None:
        self.order = order
        self.points: dict[str, Point] = {}
        self.steps: dict[str, Step] = {}
        self.given: dict[str, int] = {}
        self.failures = Failures(changed, reach_all)
        self.wrap: Wrap | None = None
        self.around_work: Callable[[str, str, Callable[[], Any]], Any] | None = None
        self._implementations = implementations
        self._actions = Actions(self._of_action, actions)
        self._prologue, self._epilogue = prologue, epilogue
        self._default_arguments, self._namespace = default_arguments, namespace
        self._counter_view = counter_view

    def compile(self, name: str, run: EventRun) -> Callable[..., Any] | None:
        """Compile the function that emits a point or executes an action.

        Returns:
            The function, or None if it would do nothing.

        Raises:
            AttributeError: If the point or action does not exist.
        """
        if name in self.steps:
            return self._actions.step(name, self.steps[name])
        if name not in self.points:
            raise AttributeError(name)
        listeners = self.listeners(name, run)
        first, last = self._prologue(name, run), self._epilogue(name, run)
        if name in self.failures.reach_all:
            # Exceptions were collected while all listeners were called; raise them before any request is processed.
            last = [f"_report({name!r})", *last]
        if not (listeners or first or last):
            return None
        return self._compiled(name, listeners, run, first, last)

    def cleanup_of(self, hook: str, run: EventRun) -> Callable[..., Any]:
        """Compile the `cleanup` of a single hook, for a hook that is unregistered before the end of the run."""
        listeners = [listener for listener in self.listeners("cleanup", run) if listener.hook == hook]
        return self._compiled("cleanup", listeners, run, (), ["_report('cleanup')"])

    def listeners(self, point: str, run: EventRun) -> list[Listener]:
        """Return the listeners of a point in execution order, without those that are disabled or run on other ranks.

        Raises:
            OrderError: If the before=/after= constraints form a cycle.
        """
        spec, listeners = self.points[point], []
        for implementation in self._of(point, run):
            listener = listener_of(implementation, spec, self.given.get(implementation.hook))
            listener.call = self.failures.counts.watched(listener)
            if self.wrap is not None:
                listener.call = self.wrap(listener)
            listeners.append(listener)
        return ordered(listeners, reverse=spec.reverse and self.order == "nested")

    def check_order(self, run: EventRun) -> None:
        """Check the ordering constraints at every point.

        Raises:
            OrderError: If the before=/after= constraints form a cycle.
        """
        for point in self.points:
            self.listeners(point, run)

    def forget(self, hook: str) -> None:
        """Discard the priority and the failures of an unregistered hook, whose name may be reused."""
        self.given.pop(hook, None)
        self.failures.counts.forget(hook)

    def _compiled(
        self, name: str, listeners: list[Listener], run: EventRun, first: Sequence[str], last: Sequence[str]
    ) -> Callable[..., None]:
        return compile_point(
            self.points[name],
            listeners,
            run.clock,
            counter_view=self._counter_view,
            run=run,
            fill=self._default_arguments(self.points[name]),
            names={**self._namespace(run), "_report": self.failures.raise_collected},
            recover=self.failures.recover,
            first=first,
            finally_=last,
        )

    def _of(self, name: str, run: EventRun) -> list[Implementation]:
        return [item for item in self._implementations(name) if self._takes_part(item, name, run)]

    def _takes_part(self, implementation: Implementation, name: str, run: EventRun) -> bool:
        # A disabled hook may still have threads and files to release.
        if self.failures.counts.is_disabled(implementation.hook) and name != "cleanup":
            return False
        return run.serves(implementation.plugin)

    def _of_action(self, action: str) -> list[Implementation]:
        """Return the implementations of an action, outermost first."""
        enabled = [item for item in self._implementations(action) if not self.failures.counts.is_disabled(item.hook)]
        return sorted(enabled, key=self._depth)

    def _depth(self, implementation: Implementation) -> tuple[int, int]:
        """Return the sort key of an implementation: tryfirst and trylast take precedence over the priority."""
        side = bool(implementation.options.get("trylast")) - bool(implementation.options.get("tryfirst"))
        return side, priority_of(implementation, self.given.get(implementation.hook))[0]
