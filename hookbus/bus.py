"""The event bus: registration of hooks and emission of points.

pluggy stores the plugins and validates their signatures, but does not dispatch. The bus compiles one function per point
that calls the listeners in order (see `dispatch.compiling`), on first use after each change of the registered plugins.
The training loop calls these functions through `bus.calls`; `bus.emit` validates its arguments first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from threading import RLock
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, TypeVar

from hookbus.dispatch.actions import action_arguments, actionspec, step_of
from hookbus.dispatch.brackets import wrap_emitter
from hookbus.dispatch.checks import is_configured, listed
from hookbus.dispatch.declaring import Points
from hookbus.dispatch.elsewhere import named_elsewhere
from hookbus.dispatch.emitting import write_emitter
from hookbus.dispatch.explain import Explanation, explain
from hookbus.dispatch.listeners import check_priority
from hookbus.dispatch.manager import Manager
from hookbus.dispatch.members import FunctionPlugin, see_that_it_is_free
from hookbus.dispatch.points import fill_for, finally_for, first_for, names_for
from hookbus.dispatch.table import Calls, Order, Table, Wrap
from hookbus.errors import ConfigError, HookError, PointError, RegistrationError, did_you_mean
from hookbus.hook import Hook
from hookbus.lifecycle import POINTS
from hookbus.markers import IMPL_ATTRIBUTE, hookimpl
from hookbus.moment import PointMoment
from hookbus.points import ALIASES
from hookbus.run import Run
from hookbus.when import Schedule

if TYPE_CHECKING:
    from hookbus.dispatch.overloads import Emit

__all__ = ["REACH_ALL", "ActionSpecs", "HookBus"]

F = TypeVar("F", bound=Callable[..., Any])

REACH_ALL = frozenset({"on_exception", "after_run", "cleanup"})
"""Points that call every listener even if one of them fails. The exceptions are raised together afterwards."""


class ActionSpecs:
    """Actions of training, one method each. `runner` and `data_batch` are aliases of `run` and `batch`."""

    @actionspec
    def train_step(self, run, batch, runner, data_batch):  # type: ignore[no-untyped-def]
        """Train on one micro-batch: forward, backward, and the optimizer step if it is due. Return the outputs."""

    @actionspec
    def val_step(self, run, batch, runner, data_batch):  # type: ignore[no-untyped-def]
        """Evaluate one validation batch. Return the outputs, including the loss if there is one."""

    @actionspec
    def test_step(self, run, batch, runner, data_batch):  # type: ignore[no-untyped-def]
        """Evaluate one test batch. Return the outputs, including the loss if there is one."""


class HookBus(Points):
    """Event bus for training.

    Args:
        hooks: Hooks to register, in this order. No other hooks are registered.
        order: Order of the listeners at each point. `"nested"` (default) runs `before_*` points by ascending and
            `after_*` points by descending priority, so that hooks nest like context managers. `"ascending"` runs every
            point by ascending priority.

    Attributes:
        calls: Compiled function of every point and action, as used by the training loop.
        table: Event tables from which the functions are compiled.
        current: Active run, or an idle run if none is active.
        lock: Lock that guards registration and compilation.
        pm: The pluggy PluginManager. Its register, unregister and set_blocked are equivalent to those of the bus.

    Raises:
        RegistrationError: If a hook is invalid.
        ConfigError: If `order` is invalid.
    """

    def __init__(self, hooks: Iterable[object] = (), *, order: Order = "nested") -> None:
        if order not in ("nested", "ascending"):
            raise ConfigError([f"order: invalid value, got {order!r}. Set 'nested' or 'ascending'."])
        # `emit` adds entries lazily: most runs emit few of the declared points.
        self._emitters: dict[str, Callable[..., None]] = {}
        # Reentrant, because registration and compilation acquire the lock inside of each other.
        self.lock = RLock()
        self.actions = action_arguments(ActionSpecs)
        self.pm = Manager(self, named_elsewhere)
        self.table = Table(
            order,
            self.pm.members.implementations,
            self.changed,
            prologue=first_for,
            epilogue=finally_for,
            default_arguments=fill_for,
            namespace=names_for,
            counter_view=PointMoment,
            reach_all=REACH_ALL,
            actions=ActionSpecs,
        )
        self.calls = Calls(lambda name: self.table.compile(name, self.current), self.lock)
        self.pm.add_hookspecs(ActionSpecs)
        self._add(POINTS)
        self.current: Run = Run(self)
        for hook in listed(hooks):
            self.register(hook)

    @classmethod
    def from_file(cls, path: str | Path) -> HookBus:
        """Build a bus with the hooks of a run file.

        Raises:
            ConfigError: If the file is invalid. The message lists all errors.
        """
        from hookbus.config import load_config  # circular: the config module imports this one

        config = load_config(path)
        return cls(config.checked_hooks(), order=config.order)

    # -- registration ------------------------------------------------------------------------

    def register(self, hook: object, name: str | None = None, *, priority: int | None = None) -> object:
        """Register a hook. If called during an event, the hook is first called at the next event.

        Args:
            hook: A `Hook`, or a plugin with functions marked by `@hookimpl`.
            name: Instance name. Default: the name of the hook.
            priority: Priority that overrides the priority of the hook.

        Returns:
            The hook.

        Raises:
            RegistrationError: If the hook is invalid. No part of it is registered.
        """
        if is_configured(hook) and not hook.config.enabled:
            return hook
        name = name or self.name_of(hook)
        if priority is not None:
            check_priority(priority, hook, name)
        if self.pm.register(hook, name) and priority is not None:
            self.table.given[name] = priority
            self.changed()
        return hook

    def unregister(self, hook: object) -> object:
        """Unregister a hook. If called during an event, the change takes effect at the next event.

        The `cleanup` of the hook is called if a run is active: immediately, or at the next boundary if called during an
        event.

        Args:
            hook: The hook, its instance name, or a function registered by `on`, which is removed from all its points.

        Returns:
            The unregistered plugin.

        Raises:
            HookError: If the hook is not registered.
        """
        names = self.pm.members.names_of(hook)
        if not names:
            known = did_you_mean(hook, self.hooks) if isinstance(hook, str) else ""
            raise HookError(f"unregister: {hook!r} is not registered.{known}")
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
            point: Name of the point.
            when, priority, before, after: See `hookimpl`.
            name: Instance name. Default: `module.qualname`, or `module.qualname@point` for further points of the same
                function.

        Raises:
            RegistrationError: If the function is invalid or the point does not exist.
        """
        if not isinstance(point, str) or not point:
            raise RegistrationError(
                f"bus.on: invalid point name, got {point!r}. Pass the name of a point such as 'after_train_iter'."
            )
        mark = hookimpl(when=when, priority=priority, before=before, after=after, specname=point)
        target = ALIASES.get(point, point)

        def register(function: F) -> F:
            if target not in self.points:
                self.find_points({target})
            if not isinstance(function, (FunctionType, MethodType)):
                raise RegistrationError(
                    f"bus.on({point!r}): expected a function, got {function!r}. Pass a function that calls it."
                )
            # `mark` stores the options on a throwaway lambda: the function may be registered at multiple points, with
            # different options at each.
            plugin = FunctionPlugin(function, getattr(mark(lambda: None), IMPL_ATTRIBUTE))
            self.register(plugin, name or self.pm.members.free_name(function, target))
            return function

        return register

    @property
    def hooks(self) -> dict[str, object]:
        """Registered plugins by instance name, in registration order."""
        return {name: member.plugin for name, member in self.pm.members.items()}

    def name_of(self, hook: object) -> str:
        """Return the default instance name of a hook."""
        if is_configured(hook):
            return hook.name
        return getattr(hook, "__name__", None) or f"{type(hook).__module__}.{type(hook).__qualname__}"

    def changed(self) -> None:
        """Invalidate the compiled functions after a change of plugins, schedules or the clock."""
        with self.lock:
            self.calls.forget([*self.points, *self.table.steps])
            self._emitters.clear()
        self.current.members_changed()

    # -- emission ----------------------------------------------------------------------------

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
        """Emit an event at a point.

        Omitted arguments default to the values known to the run (model, epoch, step, metrics), and to None otherwise.

        Args:
            point: Name of the point.
            step, batch_idx, batch, model, outputs, loss: Arguments of the iteration points.
            rest: Other arguments of the point.

        Raises:
            PointError: If the point does not exist or does not have the argument.
        """
        emitter = self._emitters.get(point)
        if emitter is None:
            emitter = self._emitter(point)
        emitter(step, batch_idx, batch, model, outputs, loss, rest)

    # The generated overloads type the arguments of each point; a method cannot be declared by a Protocol.
    if TYPE_CHECKING:
        emit: Emit
    else:
        emit = _emit

    def fire(self, point: str, **arguments: Any) -> bool:
        """Emit an event of the run itself, without argument checks and without automatic before/after points.

        Returns:
            Whether the point has listeners.
        """
        call = self.calls.get(point)
        if call is not None:
            call(**arguments)
        return call is not None

    def _emitter(self, name: str) -> Callable[..., None]:
        """Build and cache the function that `emit` calls for the name or alias of a point."""
        if not isinstance(name, str):
            raise PointError(
                f"bus.emit: invalid point name, got {name!r}. Pass the name of a point such as 'after_train_iter'."
            )
        point = ALIASES.get(name, name)
        if point not in self.points and not (self.find_points({point}) and point in self.points):
            raise PointError(
                f"Unknown point {name!r}.{did_you_mean(name, self.points)} Declare custom points with bus.declare."
            )
        with self.lock:
            emitter = write_emitter(self.points[point], self.calls.get(point))
            emitter = wrap_emitter(self.points[point], emitter, self.current)
            self._emitters[name] = emitter
        return emitter

    # -- actions -----------------------------------------------------------------------------

    def action(self, name: str, step: Callable[..., Any]) -> Callable[[Any], Any]:
        """Make a step of a custom loop an action, which hooks may replace or wrap.

        Args:
            name: `"train_step"`, `"val_step"` or `"test_step"`.
            step: `step(batch)` or `step(run, batch)`.

        Returns:
            Function of the batch. It remains valid when hooks are registered or unregistered.

        Raises:
            PointError: If the action does not exist or `step` takes other arguments.
        """
        if name not in self.actions:
            raise PointError(f"Unknown action {name!r}.{did_you_mean(name, self.actions)}")
        self.table.steps[name] = step_of(step)
        self.changed()
        # Looked up per call, because registration recompiles the action.
        return lambda batch: self.calls.get(name)(self.current, batch)

    # -- runs --------------------------------------------------------------------------------

    def run(self, **options: Any) -> AbstractContextManager[Run]:
        """Return a context manager for a run of a custom loop.

        Example: `with bus.run(model=model, optimizer=optimizer, epochs=5) as run:`. See
        `hookbus.session.custom_run` for the options.
        """
        from hookbus.session import custom_run  # imports torch

        return custom_run(self, **options)

    def begin(self, run: Run) -> None:
        """Attach a run to the bus and to its hooks.

        Raises:
            HookError: If a hook is used by an active run of another bus.
            OrderError: If the before=/after= constraints form a cycle.
        """
        # All hooks are checked before any is attached, so that an error leaves the previous run attached.
        for hook in self.hooks.values():
            if isinstance(hook, Hook):
                see_that_it_is_free(hook, self)
        self.current = run
        for hook in self.hooks.values():
            if isinstance(hook, Hook):
                hook._run = run
        self.changed()
        self.table.check_order(run)

    # -- instrumentation ---------------------------------------------------------------------

    def explain(self) -> Explanation:
        """Return the order of the listeners at each point, with the source of each priority.

        Raises:
            OrderError: If the before=/after= constraints form a cycle.
        """
        return explain(self.table, self.current)

    @contextmanager
    def wrapped(self, wrap: Wrap) -> Iterator[None]:
        """Replace the function of each listener by `wrap(listener)` inside the context.

        Contexts nest: a later wrapper encloses the earlier ones. There is no overhead outside of the context.
        """
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
