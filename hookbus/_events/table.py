"""Dispatch tables of a bus, compiled on first use and invalidated by changes of the registered plugins."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol

from hookbus._events.actions import Step, build_step
from hookbus._events.checks import Implementation
from hookbus._events.codegen import compile_point
from hookbus._events.failures import Failures
from hookbus._events.listeners import build_listener, resolve_priority
from hookbus._events.ordering import Listener, sort_listeners
from hookbus._events.points import Counters, CounterView, Point

if TYPE_CHECKING:
    from hookbus._events.bus import EventBus

Order = Literal["nested", "ascending"]
Wrap = Callable[[Listener], Callable[..., Any]]
WrapWork = Callable[[str, str, Callable[[], Any]], Any]
Replace = Callable[[str], Callable[..., None] | None]
Statements = Callable[[str, Any], Sequence[str]]
"""Function of a point and a run that returns statements of the generated function of the point."""


@dataclass(frozen=True)
class PointEffects:
    """What a run executes at its points in addition to the listeners.

    Attributes:
        prologue, epilogue: Functions that return the statements before and after the listeners of a point.
        default_arguments: Function that returns the expressions that replace omitted arguments of a point, by name.
        namespace: Function that returns the globals of these statements and expressions for a run.
        counter_view: Function of the counters, a point and the run that returns the view of the counters from the
            point.
        non_aborting: Points that call every listener even if one of them fails.
    """

    prologue: Statements
    epilogue: Statements
    default_arguments: Callable[[Point], dict[str, str]]
    namespace: Callable[[Any], dict[str, Any]]
    counter_view: Callable[[Any, Point, Any], CounterView]
    non_aborting: Collection[str]


class EventRun(Protocol):
    """Run whose events a bus emits.

    Attributes:
        is_running: Whether the run is active.
        pending: Whether requests are to be processed at the next boundary.
    """

    is_running: bool
    pending: bool

    @property
    def clock(self) -> Counters:
        """Counters of the run."""

    def runs_on_this_rank(self, plugin: object) -> bool:
        """Return whether a plugin receives the events of this process."""

    def receives(self, hook: str, target: str) -> bool:
        """Return whether a hook takes part in the events of a point, or in an action, at this position of the run."""

    def record_opening(self, listener: Listener) -> Callable[..., Any]:
        """Return the function of a listener, which records that its hook is opened."""

    def on_hooks_changed(self) -> None:
        """Respond to a change of the registered plugins."""

    def release(self, name: str, plugin: object) -> None:
        """Remove what a plugin that was unregistered or disabled has registered with the run."""


class DispatchTable:
    """Compiled function of each point and action, as attributes.

    The function of a point is None if the point has no listeners. The training loop uses
    `if calls.after_forward: calls.after_forward(batch=batch, ...)`.
    """

    def __init__(self, compile_name: Callable[[str], Any], lock: AbstractContextManager[Any]) -> None:
        # A class with `__getattr__` makes all attribute reads several times slower. Therefore an attribute that is not
        # compiled is set to a function that compiles it when called.
        self._compile, self._lock = compile_name, lock  # any thread may emit a point at any time
        self._compiled: set[str] = set()

    def get(self, name: str) -> Any:
        """Return the compiled function of a point or action, None if it would do nothing.

        Raises:
            AttributeError: If the point or action does not exist.
        """
        with self._lock:
            if name not in self._compiled:
                setattr(self, name, self._compile(name))
                self._compiled.add(name)
            return getattr(self, name)

    def invalidate(self, names: Iterable[str]) -> None:
        """Invalidate the functions of the given names, which are compiled again on next use."""
        with self._lock:
            for name in names:
                self._compiled.discard(name)
                setattr(self, name, partial(self._compile_and_call, name))

    def remove(self, name: str) -> None:
        """Remove the function of a point that is no longer declared."""
        with self._lock:
            self._compiled.discard(name)
            delattr(self, name)

    def _compile_and_call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        call = self.get(name)
        return None if call is None else call(*args, **kwargs)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


class EventTable:
    """Event tables, from which the functions of points and actions are compiled.

    Args:
        bus: Bus whose plugins implement the points and actions.
        order: "nested" or "ascending".
        effects: What a run executes at its points in addition to the listeners.

    Attributes:
        points: Points by name.
        steps: Steps of the loop by action.
        priority_overrides: Priorities passed at registration, by instance name.
        failures: Policy for the exceptions of hooks, and their counts.
        wrappers: Functions that replace the function of each listener. A later one encloses the earlier ones.
        replace_event: Function of a point that returns the function to call instead of its listeners, or None to call
            nothing; None if events are emitted.
        work_wrappers: Functions `wrap(hook, label, work)` that execute an operation requested by a hook, likewise.
    """

    def __init__(self, bus: EventBus, order: Order, effects: PointEffects) -> None:
        self.order = order
        self.points: dict[str, Point] = {}
        self.steps: dict[str, Step] = {}
        self.priority_overrides: dict[str, int] = {}
        self.failures = Failures(bus, effects.non_aborting)
        self.wrappers: list[Wrap] = []
        self.replace_event: Replace | None = None
        self.work_wrappers: list[WrapWork] = []
        self._bus, self._effects = bus, effects

    def compile(self, name: str, run: EventRun) -> Callable[..., Any] | None:
        """Compile the function that emits a point or executes an action.

        Returns:
            The function, or None if it would do nothing.

        Raises:
            AttributeError: If the point or action does not exist.
        """
        if name in self.steps:
            implementations = self.action_implementations(name, run)
            return build_step(name, self._bus.actions[name], self.steps[name], implementations)
        if name not in self.points:
            raise AttributeError(name)
        if self.replace_event is not None:
            return self.replace_event(name)
        listeners = self.listeners(name, run)
        first, last = self._effects.prologue(name, run), self._effects.epilogue(name, run)
        if name in self.failures.non_aborting:
            # Exceptions were collected while all listeners were called; raise them before any request is processed.
            last = [f"_report({name!r})", *last]
        if not (listeners or first or last):
            return None
        return self._compile_point(name, listeners, run, first, last)

    def compile_for_hook(self, point: str, hook: str, run: EventRun) -> Callable[..., Any]:
        """Compile a function that emits a point to a single hook, which is registered or unregistered during a run."""
        listeners = [listener for listener in self.listeners(point, run) if listener.hook == hook]
        last = [f"_report({point!r})"] if point in self.failures.non_aborting else []
        return self._compile_point(point, listeners, run, (), last)

    def listeners(self, point: str, run: EventRun) -> list[Listener]:
        """Return the listeners of a point in execution order, without those that are disabled or run on other ranks.

        Raises:
            OrderError: If the before=/after= constraints form a cycle.
        """
        spec, listeners = self.points[point], []
        for implementation in self._active_implementations(point, run):
            listener = build_listener(implementation, spec, self.priority_overrides.get(implementation.hook))
            listener.call = run.record_opening(listener)
            listener.call = self.failures.counts.reset_on_success(listener)
            for wrap in self.wrappers:
                listener.call = wrap(listener)
            listeners.append(listener)
        return sort_listeners(listeners, reverse=spec.reverse and self.order == "nested")

    def wrap_work(self, hook: str, label: str, work: Callable[[], Any]) -> Callable[[], Any]:
        """Return an operation that a hook has requested, enclosed by the wrappers."""
        for wrap in self.work_wrappers:
            work = partial(wrap, hook, label, work)
        return work

    def check_order(self, run: EventRun) -> None:
        """Check the ordering constraints at every point.

        Raises:
            OrderError: If the before=/after= constraints form a cycle.
        """
        for point in self.points:
            self.listeners(point, run)

    def discard_hook(self, hook: str) -> None:
        """Discard the priority and the failures of an unregistered hook, whose name may be reused."""
        self.priority_overrides.pop(hook, None)
        self.failures.counts.pop(hook, None)

    def _compile_point(
        self, name: str, listeners: list[Listener], run: EventRun, first: Sequence[str], last: Sequence[str]
    ) -> Callable[..., None]:
        return compile_point(
            self.points[name],
            listeners,
            run.clock,
            counter_view=self._effects.counter_view,
            run=run,
            default_arguments=self._effects.default_arguments(self.points[name]),
            namespace={**self._effects.namespace(run), "_report": self.failures.raise_pending},
            handle_exception=self.failures.handle_exception,
            prologue=first,
            epilogue=last,
        )

    def _active_implementations(self, name: str, run: EventRun) -> list[Implementation]:
        return [item for item in self._bus.pm.members.implementations(name) if self._is_active(item, name, run)]

    def _is_active(self, implementation: Implementation, name: str, run: EventRun) -> bool:
        # A disabled hook may still have threads and files to release.
        if self.failures.counts.is_disabled(implementation.hook) and name != "cleanup":
            return False
        return run.runs_on_this_rank(implementation.plugin) and run.receives(implementation.hook, name)

    def action_implementations(self, action: str, run: EventRun) -> list[Implementation]:
        """Return the implementations of an action, outermost first."""
        is_disabled = self.failures.counts.is_disabled
        implementations = self._bus.pm.members.implementations(action)
        active = (i for i in implementations if not is_disabled(i.hook) and run.receives(i.hook, action))
        return sorted(active, key=self._nesting_key)

    def _nesting_key(self, implementation: Implementation) -> tuple[int, int]:
        """Return the sort key of an implementation: tryfirst and trylast take precedence over the priority."""
        side = bool(implementation.options.get("trylast")) - bool(implementation.options.get("tryfirst"))
        return side, resolve_priority(implementation, self.priority_overrides.get(implementation.hook))[0]
