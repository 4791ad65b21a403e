"""The bus: who listens where, and the firing of points.

pluggy keeps the members and validates their signatures; it does not dispatch. After each change of membership the bus
compiles, per point and on first use, the function that calls the listeners in order (see `dispatch.compiling`). The
loop calls these functions through `bus.calls`; everyone else goes through `emit`, which checks what it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from threading import RLock
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, TypeVar

from hookbus.dispatch.actions import ACTIONS, ActionSpecs, step_of
from hookbus.dispatch.checks import listed
from hookbus.dispatch.declaring import Points
from hookbus.dispatch.emitting import emitter_for
from hookbus.dispatch.explain import Explanation, explain
from hookbus.dispatch.listeners import check_priority
from hookbus.dispatch.manager import Manager
from hookbus.dispatch.members import FunctionPlugin, see_that_it_is_free
from hookbus.dispatch.table import Calls, Order, Table, Wrap
from hookbus.errors import ConfigError, HookError, PointError, RegistrationError, did_you_mean
from hookbus.hook import Hook
from hookbus.lifecycle import ALIASES, POINTS
from hookbus.markers import IMPL_ATTRIBUTE, hookimpl
from hookbus.run import Run
from hookbus.when import Schedule

if TYPE_CHECKING:
    from hookbus.dispatch.overloads import Emit

__all__ = ["HookBus"]

F = TypeVar("F", bound=Callable[..., Any])


class HookBus(Points):
    """An event bus for a training.

    Args:
        hooks: hooks to register, in this order. A bare bus has exactly these.
        order: "nested" runs `after_*` from large to small priorities, so that numbers are depths; "ascending" runs
            every point from small to large.

    Attributes:
        calls: the loop's own path to every point and action.
        table: the compiled tables.
        current: the run in progress, or an idle one.
        lock: held while members change and while points are compiled.
        pm: the pluggy PluginManager; register, unregister and set_blocked on it take effect like the bus's own.

    Raises:
        RegistrationError: a hook was refused.
        ConfigError: there is no such order.
    """

    def __init__(self, hooks: Iterable[object] = (), *, order: Order = "nested") -> None:
        if order not in ("nested", "ascending"):
            raise ConfigError([f"order: {order!r} is neither 'nested' nor 'ascending'."])
        self._emitters: dict[str, Callable[..., None]] = {}
        self.lock = RLock()
        self.pm = Manager(self)
        self.table = Table(order, self.pm.members.implementations, self.changed)
        self.calls = Calls(lambda name: self.table.compile(name, self.current), self.lock)
        self.pm.add_hookspecs(ActionSpecs)
        self._add(POINTS)
        self.current: Run = Run(self)
        for hook in listed(hooks):
            self.register(hook)

    @classmethod
    def from_file(cls, path: str | Path) -> HookBus:
        """A bus with exactly the hooks of a run file.

        Raises:
            ConfigError: the file does not hold; all mistakes are listed.
        """
        from hookbus.config import load_config

        config = load_config(path)
        return cls(config.checked_hooks(), order=config.order)

    # -- members -----------------------------------------------------------------------------

    def register(self, hook: object, name: str | None = None, *, priority: int | None = None) -> object:
        """Add a hook. During an event it takes effect at the next one.

        Args:
            hook: a `Hook`, or a plugin with functions marked by `@hookimpl`.
            name: the instance name; default the hook's own.
            priority: its depth, instead of the hook's own.

        Returns:
            The hook.

        Raises:
            RegistrationError: the hook was refused; nothing of it is registered.
        """
        if isinstance(hook, Hook) and not hook.config.enabled:
            return hook
        name = name or self.name_of(hook)
        if priority is not None:
            check_priority(priority, hook, name)
        if self.pm.register(hook, name) and priority is not None:
            self.table.given[name] = priority
            self.changed()
        return hook

    def unregister(self, hook: object) -> object:
        """Remove a hook. During an event it takes effect at the next one.

        In a run that is going on its `cleanup` is called, as the end of the run will not reach it: at once, or during
        an event at the next boundary.

        Args:
            hook: the hook, its name, or a function that `on` has registered, which leaves all its points.

        Returns:
            What was removed.

        Raises:
            HookError: it is not registered.
        """
        names = self.pm.members.names_of(hook)
        if not names:
            known = did_you_mean(hook, self.hooks) if isinstance(hook, str) else ""
            raise HookError(f"{hook!r} is not registered, so it cannot be unregistered.{known}")
        removed = [self.pm.unregister(name=name) for name in names]
        return removed[0] if isinstance(hook, str) else hook

    def on(
        self,
        point: str,
        *,
        when: Schedule | None = None,
        priority: int | None = None,
        before: str | Iterable[str] = (),
        after: str | Iterable[str] = (),
        name: str | None = None,
    ) -> Callable[[F], F]:
        """Register a function: `@bus.on("after_train_iter", when=every(100))`.

        Args:
            point: where it listens.
            when, priority, before, after: as for `hookimpl`.
            name: its instance name; default module.qualname, and module.qualname@point at a second point.

        Raises:
            RegistrationError: the function was refused, or there is no such point.
        """
        if not isinstance(point, str) or not point:
            raise RegistrationError(f"bus.on takes the name of a point, such as 'after_train_iter', not {point!r}.")
        mark = hookimpl(when=when, priority=priority, before=before, after=after, specname=point)
        target = ALIASES.get(point, point)

        def register(function: F) -> F:
            if target not in self.points:
                self.find_points({target})
            if not isinstance(function, (FunctionType, MethodType)):
                raise RegistrationError(
                    f"bus.on({point!r}) takes a function, not {function!r}: write a function that calls it."
                )
            plugin = FunctionPlugin(function, getattr(mark(lambda: None), IMPL_ATTRIBUTE))
            self.register(plugin, name or self.pm.members.free_name(function, target))
            return function

        return register

    @property
    def hooks(self) -> dict[str, object]:
        """The members by instance name, in the order of registration."""
        return {name: member.plugin for name, member in self.pm.members.items()}

    def name_of(self, hook: object) -> str:
        """The instance name that a hook gets when none is given."""
        if isinstance(hook, Hook):
            return hook.name
        return getattr(hook, "__name__", None) or f"{type(hook).__module__}.{type(hook).__qualname__}"

    def changed(self) -> None:
        """Members, schedules or the clock have changed: compile again on next use."""
        with self.lock:
            self.calls.forget([*self.points, *self.table.steps])
            self._emitters.clear()
        self.current.members_changed()

    # -- firing ------------------------------------------------------------------------------

    def _emit(
        self,
        point: str,
        /,
        *,
        step: Any = None,
        batch_idx: Any = None,
        batch: Any = None,
        model: Any = None,
        outputs: Any = None,
        loss: Any = None,
        **rest: Any,
    ) -> None:
        """Fire a point. What the run knows (model, epoch, step, metrics) is filled in; the rest is None.

        Args:
            point: its name.
            step, batch_idx, batch, model, outputs, loss: arguments of the iteration points.
            rest: other arguments of the point.

        Raises:
            PointError: there is no such point, or it has no such argument.
        """
        emitter = self._emitters.get(point)
        if emitter is None:
            emitter = self._emitter(point)
        emitter(step, batch_idx, batch, model, outputs, loss, rest)

    if TYPE_CHECKING:
        emit: Emit
    else:
        emit = _emit

    def fire(self, point: str, **arguments: Any) -> bool:
        """Fire a point on the run's own behalf: arguments are not checked, brackets are not looked at.

        Returns:
            Whether anybody listens there.
        """
        call = self.calls.get(point)
        if call is not None:
            call(**arguments)
        return call is not None

    def _emitter(self, given: str) -> Callable[..., None]:
        """The function behind `emit` for one point: it checks the arguments and keeps the brackets."""
        if not isinstance(given, str):
            raise PointError(f"bus.emit takes the name of a point, such as 'after_train_iter', not {given!r}.")
        point = ALIASES.get(given, given)
        if point not in self.points and not (self.find_points({point}) and point in self.points):
            raise PointError(
                f"There is no point {given!r}.{did_you_mean(given, self.points)} Declare your own with bus.declare."
            )
        with self.lock:
            emitter = emitter_for(self.points[point], self.calls.get(point), self.current)
            self._emitters[given] = emitter
        return emitter

    # -- actions -----------------------------------------------------------------------------

    def action(self, name: str, step: Callable[..., Any]) -> Callable[[Any], Any]:
        """Let hooks replace or wrap a step of one's own loop.

        Args:
            name: "train_step", "val_step" or "test_step".
            step: `step(batch)` or `step(run, batch)`.

        Returns:
            A function of the batch; it follows later changes of membership.

        Raises:
            PointError: there is no such action, or the step takes something else.
        """
        if name not in ACTIONS:
            raise PointError(f"There is no action {name!r}.{did_you_mean(name, ACTIONS)}")
        self.table.steps[name] = step_of(step)
        self.changed()
        return lambda batch: self.calls.get(name)(self.current, batch)

    # -- runs --------------------------------------------------------------------------------

    def run(self, **options: Any) -> AbstractContextManager[Run]:
        """A run of one's own loop: `with bus.run(model=model, optimizer=optimizer, epochs=5) as run:`.

        See `hookbus.session.custom_run` for the options.
        """
        from hookbus.session import custom_run

        return custom_run(self, **options)

    def begin(self, run: Run) -> None:
        """Make a run the current one, and see that the order at every point can be told.

        Raises:
            OrderError: the before=/after= wishes contradict each other.
        """
        for hook in self.hooks.values():
            if isinstance(hook, Hook):
                see_that_it_is_free(hook, self)
        self.current = run
        for hook in self.hooks.values():
            if isinstance(hook, Hook):
                hook._run = run
        self.changed()
        self.table.check_order(run)

    # -- seeing --------------------------------------------------------------------------------

    def explain(self) -> Explanation:
        """The order at each point, with the source of each number.

        Raises:
            OrderError: the before=/after= wishes contradict each other.
        """
        return explain(self)

    @contextmanager
    def wrapped(self, wrap: Wrap) -> Iterator[None]:
        """Replace each listener's function by what `wrap` makes of it, around other wraps. Costs nothing when off."""
        outer = self.table.wrap
        self.table.wrap = wrap if outer is None else _around(wrap, outer)
        self.changed()
        try:
            yield
        finally:
            self.table.wrap = outer
            self.changed()


def _around(outer: Wrap, inner: Wrap) -> Wrap:
    return lambda listener: outer(replace(listener, call=inner(listener)))
