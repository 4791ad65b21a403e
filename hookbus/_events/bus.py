"""The event bus: declaration of points, registration of plugins and emission of events.

pluggy stores the plugins and validates their signatures, but does not dispatch. The bus compiles one function per point
that calls the listeners in order (see `codegen`), on first use after each change of the registered plugins. `bus.calls`
provides these functions; `bus.emit` validates its arguments first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from threading import RLock
from types import FunctionType, MethodType
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeVar, overload

from hookbus._events.action_declarations import ActionDeclarations
from hookbus._events.actions import action_arguments
from hookbus._events.checks import AliasLookup, is_configured
from hookbus._events.codegen import Emitter, bind_point, compile_emitter
from hookbus._events.explain import Explanation, explain
from hookbus._events.manager import BusPluginManager
from hookbus._events.markers import IMPL_ATTRIBUTE, hookimpl
from hookbus._events.points import POINT_ALIASES, Point, Unit, check_point, parse_point, parse_points
from hookbus._events.registry import FunctionPlugin, HooksByName, PointOwners
from hookbus._events.schedules import Schedule
from hookbus._events.table import DispatchTable, EventRun, EventTable, Order, PointEffects, Replace, Wrap, WrapWork
from hookbus._utils import packages
from hookbus._utils.deprecations import Deprecation, deprecated, read_deprecations, to_deprecations
from hookbus.errors import ConfigError, HookNotFoundError, PointError, RegistrationError, suggest_names

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
T = TypeVar("T")


class EventBus(ActionDeclarations):
    """Event bus of a run. A subclass defines the points and the statements that the run executes at them.

    Args:
        order: Order of the listeners at each point, `"nested"` or `"ascending"`.
        points: Points of the bus, by name.
        actions: Spec class of the actions.
        effects: What the run executes at the points.
        emitter_wrapper: Function of a point, the function that emits it, and the run. Returns the function that `emit`
            calls.
        find_alias: Lookup of callback names of other frameworks, for error messages.

    Attributes:
        current: Run whose events the bus emits, assigned by the subclass.
        reserved_names: Names that neither a point nor an action may have.

    Raises:
        ConfigError: If `order` is invalid.
    """

    current: EventRun
    reserved_names: ClassVar[Collection[str]] = ()

    def __init__(
        self,
        *,
        order: Order,
        points: Mapping[str, Point],
        actions: type,
        effects: PointEffects,
        emitter_wrapper: Callable[[Point, Emitter, Any], Emitter],
        find_alias: AliasLookup,
    ) -> None:
        if order not in ("nested", "ascending"):
            raise ConfigError([f"order: invalid value, got {order!r}. Set 'nested' or 'ascending'."])
        # `emit` adds entries lazily: most runs emit few of the declared points.
        self._emitters: dict[str, Emitter] = {}
        self._emitter_wrapper = emitter_wrapper
        self._point_owners = PointOwners()
        # Reentrant, because registration and compilation acquire the lock inside of each other.
        self.lock = RLock()
        self._init_actions(action_arguments(actions))
        self.pm = BusPluginManager(self, find_alias)
        self.table = EventTable(self, order, effects)
        self.calls = DispatchTable(lambda name: self.table.compile(name, self.current), self.lock)
        self.pm.add_specs(self.actions, firstresult=True)
        self._add(points)

    # -- points ------------------------------------------------------------------------------

    @property
    def points(self) -> Mapping[str, Point]:
        """Points of the bus, by name."""
        return self.table.points

    @overload
    def declare(
        self,
        point: str,
        args: Sequence[str] = ...,
        *,
        unit: Unit | None = ...,
        doc: str = ...,
        deprecated: deprecated | Iterable[deprecated] = ...,
    ) -> Callable[..., None]: ...
    @overload
    def declare(self, point: Callable[Concatenate[Any, P], None]) -> Callable[P, None]: ...
    def declare(
        self,
        point: str | Callable[..., None],
        args: Sequence[str] = (),
        *,
        unit: Unit | None = None,
        doc: str = "",
        deprecated: deprecated | Iterable[deprecated] = (),
    ) -> Callable[..., None]:
        """Declare a custom point. Methods of registered hooks that are named like the point become its listeners.

        A point that a hook declares leaves with the hook, or later with the last plugin that listens at it.

        Args:
            point: Name of the point, such as `before_...`, `after_...` or `on_...`; or a method of a spec class, which
                determines all other arguments and the types of the returned function.
            args: Names of the arguments in addition to `run`.
            unit: Default unit of `when=` at this point. None (default) requires schedules with a `unit` of their own.
            doc: Description of the point.
            deprecated: Deprecation of the point, or a list of deprecations of the point and of its arguments. Default:
                none.

        Returns:
            Function that emits the point: `after_render(image=image)`.

        Raises:
            PointError: If a name is taken, reserved or not an identifier, or the unit or a deprecated argument is
                unknown. Declaring the same method again is valid, and for a hook to declare its own point again.
            RegistrationError: If a registered hook has a method with the name of the point, but not as its listener.
        """
        if isinstance(args, str):  # also a sequence of names, of one letter each
            raise PointError(f"{point}: invalid `args`, got {args!r}. Pass args=({args!r},).")
        if not isinstance(point, str):
            return self.declare_point(parse_point(point))
        types = ("Any",) * len(args)
        new = Point(point, tuple(args), unit, doc, types, to_deprecations(deprecated))
        return self.declare_point(new, by_name=True)

    def declare_point(self, point: Point, *, by_name: bool = False) -> Callable[..., None]:
        """Declare a point, see `declare`.

        Args:
            point: The point.
            by_name: Whether only the hook that has declared the point may declare an equal one. Default: False.
        """
        existing, owner = self.points.get(point.name), self.pm.members.find_calling_hook()
        if existing is None:
            self._declare(point)
        # A spec method may be declared by multiple modules, before or after its package is discovered.
        elif existing != point or (by_name and not self._point_owners.allows(point.name, owner)):
            raise PointError(f"{point.name!r}: the point is already declared. Choose another name.")
        self._point_owners.add(point.name, owner, is_new=existing is None)
        return bind_point(self.emit, point)

    def declare_from(self, spec: type) -> None:
        """Declare the points of a spec class like `Lifecycle`, and the actions among its methods.

        Methods marked with `@actionspec` are actions. Points and actions that are already declared are skipped.

        Raises:
            PointError: If a name is reserved, a method takes `*args` or `**kwargs`, or a unit is unknown.
        """
        owner = self.pm.members.find_calling_hook()
        for name in self._declare_missing(spec):
            self._point_owners.add(name, owner, is_new=True)

    def discover_points(self, names: Collection[str], module: str = "") -> bool:
        """Declare the points and actions that installed packages publish under names, or in the package of `module`.

        Returns:
            Whether any of them was declared.
        """
        before = len(self.points) + len(self.actions)
        for spec in packages.load_point_specs(names, module):
            self._declare_missing(spec)
        return len(self.points) + len(self.actions) > before

    def get_deprecations(self, name: str) -> Sequence[Deprecation]:
        """Return the deprecations of a point or an action and of its arguments."""
        point = self.points.get(name)
        source, _ = self._declared_by.get(name, (None, ""))
        return point.deprecations if point is not None else read_deprecations(source) if source is not None else ()

    def _check_declared(self, point: Point) -> None:
        """Check the names of a point or an action."""
        check_point(point, {*POINT_ALIASES, *self.actions, *vars(DispatchTable), *self.reserved_names})

    def _declare_missing(self, spec: type) -> list[str]:
        """Declare the points and actions of a spec class that are not declared yet; return the names of the points."""
        missing = {name: point for name, point in parse_points(spec).items() if name not in self.points}
        for point in missing.values():
            self._declare(point)
        for name, arguments in action_arguments(spec).items():
            if name not in self.actions:
                self._declare_action(name, arguments, vars(spec)[name])
        return list(missing)

    def _declare(self, point: Point) -> None:
        self._check_declared(point)
        updated = self.pm.inspect_for({point.name: point}, deprecations=point.deprecations)
        self._add({point.name: point})
        self.pm.update(updated)

    def _add(self, points: Mapping[str, Point]) -> None:
        self.pm.add_specs({point.name: point.args for point in points.values()})
        self.table.points.update(points)
        self.calls.invalidate(points)

    def _undeclare(self, point: str) -> None:
        """Remove a point without listeners."""
        with self.lock:
            self.pm.remove_spec(point)
            del self.table.points[point]
            self.calls.remove(point)
            self.invalidate()

    # -- registration ------------------------------------------------------------------------

    def register(self, hook: object, name: str | None = None, *, priority: int | None = None) -> object:
        """Register a hook. It takes part from the next event on.

        If a run is active, the preconditions of the hook are checked, and the opening events of everything that is open
        are emitted to it at once: `before_run`, `before_train`, `before_epoch`, `before_train_epoch`. Within an
        iteration or a validation, the hook takes part from the next iteration on, or after the validation. With
        multiple ranks, register the hook on every rank at the same position.

        Args:
            hook: A `Hook`, or a plugin with functions marked by `@hookimpl`.
            name: Instance name. Default: the name of the hook.
            priority: Priority that overrides the priority of the hook.

        Returns:
            The hook.

        Raises:
            RegistrationError: If the hook is invalid. No part of it is registered.
            HookbusError: If a run is active and a precondition of the hook is not met. No part of it is registered.
        """
        self.pm.register(hook, name, priority=priority)
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
            HookNotFoundError: If the hook is not registered.
        """
        names = self.pm.members.find_names(hook)
        if not names:
            known = suggest_names(hook, self.hooks) if isinstance(hook, str) else ""
            raise HookNotFoundError(f"unregister: {hook!r} is not registered.{known}")
        removed = [self.pm.unregister(name=name) for name in names]
        return removed[0] if isinstance(hook, str) else hook

    def on(
        self,
        point: str,
        *,
        when: Schedule | Callable[[Any], object] | None = None,
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
        target = POINT_ALIASES.get(point, point)

        def register(function: F) -> F:
            if target not in self.points:
                self.discover_points({target})
            if not isinstance(function, (FunctionType, MethodType)):
                raise RegistrationError(
                    f"bus.on({point!r}): expected a function, got {function!r}. Pass a function that calls it."
                )
            # `mark` stores the options on a throwaway lambda: the function may be registered at multiple points, with
            # different options at each.
            plugin = FunctionPlugin(function, getattr(mark(lambda: None), IMPL_ATTRIBUTE))
            self.register(plugin, name or self.pm.members.unique_name(function, target))
            return function

        return register

    @property
    def hooks(self) -> dict[str, object]:
        """Registered plugins by instance name, in registration order. A lookup raises HookNotFoundError."""
        return HooksByName((name, member.plugin) for name, member in list(self.pm.members.items()))

    def default_name(self, hook: object) -> str:
        """Return the default instance name of a hook."""
        if is_configured(hook):
            return hook.name
        return getattr(hook, "__name__", None) or f"{type(hook).__module__}.{type(hook).__qualname__}"

    def admit(self, name: str, plugin: object) -> None:
        """Let a plugin that was registered take part in the active run; implemented by a bus with runs."""

    def release(self, name: str, plugin: object) -> None:
        """Remove what a plugin has registered; called when it was unregistered or disabled.

        These are other plugins, points, and what it has registered with the run.
        """
        members = self.pm.members
        for owned in [other for other, member in list(members.items()) if member.owner == name]:
            if owned in members:  # a plugin may have left with the previous one
                self.pm.unregister(name=owned)
        self.current.release(name, plugin)
        self._release_actions(name)
        for point in self._point_owners.release(name, lambda point: any(members.implementations(point))):
            self._undeclare(point)

    def invalidate(self) -> None:
        """Invalidate the compiled functions after a change of plugins, schedules or the clock."""
        with self.lock:
            self.calls.invalidate([*self.points, *self.table.steps])
            self._emitters.clear()
        self.current.on_hooks_changed()

    # -- emission ----------------------------------------------------------------------------

    def emit(
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
            emitter = self._build_emitter(point)
        emitter(step, batch_idx, batch, model, outputs, loss, rest)

    def fire(self, point: str, **arguments: Any) -> bool:
        """Emit an event of the run itself, without argument checks and without automatic before/after points.

        Returns:
            Whether the point has listeners.
        """
        call = self.calls.get(point)
        if call is not None:
            call(**arguments)
        return call is not None

    def _build_emitter(self, name: str) -> Emitter:
        """Build and cache the function that `emit` calls for the name or alias of a point."""
        if not isinstance(name, str):
            raise PointError(
                f"bus.emit: invalid point name, got {name!r}. Pass the name of a point such as 'after_train_iter'."
            )
        point = POINT_ALIASES.get(name, name)
        if point not in self.points and not (self.discover_points({point}) and point in self.points):
            raise PointError(
                f"Unknown point {name!r}.{self._point_owners.describe(point)}{suggest_names(name, self.points)} "
                "Declare custom points with bus.declare."
            )
        with self.lock:
            emitter = compile_emitter(self.points[point], self.calls.get(point))
            if self.table.replace_event is None:
                emitter = self._emitter_wrapper(self.points[point], emitter, self.current)
            self._emitters[name] = emitter
        return emitter

    # -- instrumentation ---------------------------------------------------------------------

    def explain(self) -> Explanation:
        """Return the order of the listeners at each point and of the hooks of each action, with their priorities.

        Raises:
            OrderError: If the before=/after= constraints form a cycle.
        """
        return explain(self.table, self.current, self.actions)

    @contextmanager
    def wrap_listeners(self, wrap: Wrap) -> Iterator[None]:
        """Replace the function of each listener by `wrap(listener)` inside the context.

        A later wrapper encloses the earlier ones. Contexts may end in any order, because hooks begin and end them at
        events. There is no overhead outside of the context.
        """
        try:
            with _appended(self.table.wrappers, wrap):
                self.invalidate()
                yield
        finally:
            self.invalidate()

    def wrap_work(self, wrap: WrapWork) -> AbstractContextManager[None]:
        """Execute each operation that a hook has requested by `wrap(hook, label, work)` inside the context."""
        return _appended(self.table.work_wrappers, wrap)

    def muted(self, replace_event: Replace) -> AbstractContextManager[None]:
        """Emit no events inside the context. Actions are executed, and the arguments of `emit` are checked.

        Args:
            replace_event: Function of a point that returns the function to call instead of its listeners, or None.
        """
        return self.change_table(replace_event=replace_event)

    @contextmanager
    def change_table(self, **changes: Any) -> Iterator[None]:
        """Set attributes of the event tables inside the context."""
        previous = {name: getattr(self.table, name) for name in changes}
        vars(self.table).update(changes)
        self.invalidate()
        try:
            yield
        finally:
            vars(self.table).update(previous)
            self.invalidate()


@contextmanager
def _appended(items: list[T], item: T) -> Iterator[None]:
    """Context manager in which a list contains an item."""
    items.append(item)
    try:
        yield
    finally:
        items.remove(item)
