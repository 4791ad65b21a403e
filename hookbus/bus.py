"""The bus: who listens where, and the firing of points.

pluggy keeps the members and validates their signatures; it does not dispatch. After each change of membership the bus
compiles, per point and on first use, the function that calls the listeners in order (see `_dispatch`). The loop
calls these functions through `bus.calls`; everyone else goes through `emit`, which checks what it is given.
"""

from __future__ import annotations

import keyword
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import pluggy

from hookbus import _packages
from hookbus._checks import OPTIONS_ATTRIBUTE, Implementation, inspect_plugin
from hookbus._dispatch import load_text
from hookbus._emitting import bracketed, write_emitter
from hookbus._listeners import check_schedules
from hookbus._table import Calls, Order, Table, Wrap
from hookbus.actions import ACTIONS, ActionSpecs, step_of
from hookbus.brackets import BRACKETED
from hookbus.errors import ConfigError, HookError, PointError, RegistrationError, did_you_mean
from hookbus.explain import Explanation, explain
from hookbus.hook import Hook
from hookbus.lifecycle import ALIASES, POINTS, SPELLINGS, Point, Unit, describe
from hookbus.markers import IMPL_ATTRIBUTE, PROJECT, Options, hookimpl
from hookbus.run import Run
from hookbus.when import Schedule

if TYPE_CHECKING:
    from hookbus._emit import Emit

__all__ = ["HookBus"]

F = TypeVar("F", bound=Callable[..., Any])


class HookBus:
    """An event bus for a training.

    Args:
        hooks: hooks to register, in this order. A bare bus has exactly these.
        order: "nested" runs `after_*` from large to small priorities, so that numbers are depths; "ascending" runs
            every point from small to large.

    Attributes:
        calls: the loop's own path to every point and action.
        table: the compiled tables.
        current: the run in progress, or an idle one.
        pm: the pluggy PluginManager; register, unregister and set_blocked on it take effect like the bus's own.

    Raises:
        RegistrationError: a hook was refused.
        ConfigError: there is no such order.
    """

    def __init__(self, hooks: Iterable[object] = (), *, order: Order = "nested") -> None:
        if order not in ("nested", "ascending"):
            raise ConfigError([f"order: {order!r} is neither 'nested' nor 'ascending'."])
        self._emitters: dict[str, Callable[..., None]] = {}
        self.table = Table(order, self._implementations, self.changed)
        self.calls = Calls(lambda name: self.table.compile(name, self.current))
        self.pm = _Manager(self)
        self.pm.add_hookspecs(ActionSpecs)
        self._add(POINTS)
        self.current: Run = Run(self)
        for hook in hooks:
            self.register(hook)

    @classmethod
    def from_file(cls, path: str | Path) -> HookBus:
        """A bus with exactly the hooks of a run file.

        Raises:
            ConfigError: the file does not hold; all mistakes are listed.
        """
        from hookbus.builder import bus_from_file

        return bus_from_file(cls, path)

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
        self.pm.register(hook, name)
        if priority is not None and self.pm.get_plugin(name) is hook:
            self.table.given[name] = priority
            self.changed()
        return hook

    def unregister(self, hook: object) -> object:
        """Remove a hook, given as itself or by name. During an event it takes effect at the next one.

        Raises:
            HookError: it is not registered.
        """
        name = hook if isinstance(hook, str) else self.pm.get_name(hook)
        plugin = self.pm.unregister(name=name) if name is not None and self.pm.get_plugin(name) is not None else None
        if plugin is None:
            known = did_you_mean(str(hook), self.hooks) if isinstance(hook, str) else ""
            raise HookError(f"{hook!r} is not registered, so it cannot be unregistered.{known}")
        return plugin

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
            name: its instance name; default module.qualname.

        Raises:
            RegistrationError: the function was refused, or there is no such point.
        """
        mark = hookimpl(when=when, priority=priority, before=before, after=after, specname=point)

        def register(function: F) -> F:
            plugin = _Function(function, getattr(mark(lambda: None), IMPL_ATTRIBUTE))
            self.register(plugin, name or f"{function.__module__}.{function.__qualname__}")
            return function

        return register

    @property
    def hooks(self) -> dict[str, object]:
        """The members by instance name, in the order of registration."""
        return {name: plugin for name, plugin in self.pm.list_name_plugin() if plugin is not None}

    def name_of(self, hook: object) -> str:
        """The instance name that a hook gets when none is given."""
        if isinstance(hook, Hook):
            return hook.name
        if isinstance(hook, type):
            raise RegistrationError(f"{hook.__name__} is a class: register an instance of it, {hook.__name__}(...).")
        return getattr(hook, "__name__", None) or f"{type(hook).__module__}.{type(hook).__qualname__}"

    def hook_in(self, frame: FrameType | None) -> str | None:
        """The instance name of the hook whose method is running in a frame or in one of its callers."""
        while frame is not None:
            owner = frame.f_locals.get("self")
            if isinstance(owner, Hook) and (name := self.pm.get_name(owner)):
                return name
            frame = frame.f_back
        return None

    def changed(self) -> None:
        """Members, schedules or the clock have changed: compile again on next use."""
        self.calls.forget()
        self._emitters.clear()
        self.current.members_changed()

    # -- points ------------------------------------------------------------------------------

    @property
    def points(self) -> Mapping[str, Point]:
        """Every point that can be fired here, by name."""
        return self.table.points

    def declare(
        self, name: str, args: Sequence[str] = (), *, unit: Unit | None = None, doc: str = ""
    ) -> Callable[..., None]:
        """Declare a point of one's own.

        Args:
            name: `before_...`, `after_...`, `on_...` or another identifier.
            args: its arguments besides `run`.
            unit: what `when=` counts there; None where nothing is counted.
            doc: what it means.

        Returns:
            A function that fires it: `after_render(image=picture)`.

        Raises:
            PointError: the name is taken or is not an identifier, or an argument has a reserved name.
        """
        for each in (name, *args):
            if not each.isidentifier() or keyword.iskeyword(each) or each.startswith("_"):
                raise PointError(f"{each!r} cannot be the name of a point or argument: write a plain identifier.")
        if name in self.points or name in ALIASES or name in ACTIONS:
            raise PointError(f"The point {name!r} is declared already.")
        reserved = {"run", *SPELLINGS} & set(args)
        if reserved:
            raise PointError(f"{name}: {', '.join(sorted(reserved))} is there at every point; do not declare it.")
        self._add({name: Point(name, tuple(args), unit, doc, ("Any",) * len(args))})

        def fire(**arguments: Any) -> None:
            self._emit(name, **arguments)

        fire.__name__ = fire.__qualname__ = name
        fire.__doc__ = doc or f"Fire {name}({', '.join(args)})."
        return fire

    def declare_from(self, spec: type) -> None:
        """Declare the points of a spec class like `Lifecycle`, one method each; those that are there stay."""
        self._add({name: point for name, point in describe(spec).items() if name not in self.points})

    def find_points(self, name: str, module: str = "") -> bool:
        """Declare what installed packages offer under `name`, or in `module`'s own package. Returns whether any."""
        before = len(self.points)
        for spec in _packages.point_specs(name, module):
            self.declare_from(spec)
        return len(self.points) > before

    def _add(self, points: Mapping[str, Point]) -> None:
        self.pm.add_hookspecs(_spec_class(points))
        self.table.points.update(points)

    def _implementations(self, name: str) -> list[Any]:
        return list(getattr(self.pm.hook, name).get_hookimpls())

    # -- firing ------------------------------------------------------------------------------

    def _emit(
        self,
        point: str,
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

    def fire(self, point: str, **arguments: Any) -> None:
        """Fire a point on the run's own behalf: arguments are not checked, brackets are not looked at."""
        call = getattr(self.calls, point)
        if call is not None:
            call(**arguments)

    def _emitter(self, given: str) -> Callable[..., None]:
        """The function behind `emit` for one point: it checks the arguments and keeps the brackets."""
        point = ALIASES.get(given, given)
        if point not in self.points and not (self.find_points(point) and point in self.points):
            raise PointError(
                f"There is no point {given!r}.{did_you_mean(given, self.points)} Declare your own with bus.declare."
            )
        emitter = write_emitter(self.points[point], getattr(self.calls, point))
        if point in ("before_optimizer_step", "after_optimizer_step"):
            emitter = self.current.optimizer_events.explicit(point, emitter)
        elif point in BRACKETED and self.current.keeps_brackets:
            emitter = bracketed(self.current.brackets, point, emitter)
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
        return lambda batch: getattr(self.calls, name)(self.current, batch)

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
        self.current = run
        for hook in self.hooks.values():
            if isinstance(hook, Hook):
                hook._run = run
        self.changed()
        run.metrics.watched = self.table.watches_metrics(run) or run.metrics.watched

    # -- seeing --------------------------------------------------------------------------------

    def explain(self) -> Explanation:
        """The order at each point, with the source of each number.

        Raises:
            OrderError: the before=/after= wishes contradict each other.
        """
        return explain(self)

    @contextmanager
    def wrapped(self, wrap: Wrap) -> Iterator[None]:
        """Replace each listener's function by what `wrap` makes of it. Costs nothing when off."""
        outer, self.table.wrap = self.table.wrap, wrap
        self.changed()
        try:
            yield
        finally:
            self.table.wrap = outer
            self.changed()


class _Manager(pluggy.PluginManager):
    """pluggy's manager, with our checks before and a word to the bus after every change."""

    def __init__(self, bus: HookBus) -> None:
        super().__init__(PROJECT)
        self._bus = bus
        self._found: dict[str, Implementation] = {}

    def register(self, plugin: object, name: str | None = None) -> str | None:
        """Add a plugin; what cannot be added is refused with a RegistrationError."""
        name = name or self._bus.name_of(plugin)
        if self.is_blocked(name):
            return super().register(plugin, name)
        self._refuse_twice(plugin, name)
        self._found = {each.method: each for each in self._inspect(plugin, name)}
        registered = super().register(plugin, name)
        if isinstance(plugin, Hook):
            plugin._name, plugin._run = name, self._bus.current
        self._bus.changed()
        return registered

    def unregister(self, plugin: object | None = None, name: str | None = None) -> Any | None:
        """Remove a plugin."""
        removed = super().unregister(plugin, name)
        if isinstance(removed, Hook):
            removed._run = None
        self._bus.changed()
        return removed

    def parse_hookimpl_opts(self, plugin: object, name: str) -> Any:
        """Tell pluggy what our checks have found."""
        found = self._found.get(name)
        if found is None:
            return None
        own = {key: found.options.get(key, False) for key in ("wrapper", "tryfirst", "trylast")}
        return {**own, "hookwrapper": False, "optionalhook": False, "specname": found.target, "found": found}

    def _refuse_twice(self, plugin: object, name: str) -> None:
        for other, there in self.list_name_plugin():
            if there is plugin:
                raise RegistrationError(f"hook {other!r} is registered already; it was not registered again.")
        if self.get_plugin(name) is not None:
            raise RegistrationError(
                f"A hook named {name!r} is registered already. Give this one a name of its own: name=..."
            )

    def _inspect(self, plugin: object, name: str) -> list[Implementation]:
        bus = self._bus
        try:
            found = inspect_plugin(plugin, name, bus.points, ACTIONS)
        except RegistrationError:
            if not bus.find_points("", _packages.module_of(plugin)):
                raise
            found = inspect_plugin(plugin, name, bus.points, ACTIONS)
        check_schedules(plugin, name, found, bus.points)
        return found


class _Function:
    """A function, registered as a plugin of its own by `bus.on`."""

    def __init__(self, function: Callable[..., Any], options: Options) -> None:
        self.__module__, self.__name__ = function.__module__, function.__qualname__
        self.listener = function
        setattr(self, OPTIONS_ATTRIBUTE, {"listener": options})


def _spec_class(points: Mapping[str, Point]) -> type:
    """The points as pluggy wants them: functions without defaults, second spellings of arguments included."""
    namespace: dict[str, Any] = {"mark": pluggy.HookspecMarker(PROJECT)}
    lines = ["class Spec:"]
    for point in points.values():
        spellings = [other for other, name in SPELLINGS.items() if name in ("run", *point.args)]
        lines += ["    @mark", f"    def {point.name}({', '.join(('self', 'run', *point.args, *spellings))}): ..."]
    if not points:
        lines.append("    pass")
    exec(load_text("\n".join(lines) + "\n", "points"), namespace)
    return namespace["Spec"]  # type: ignore[no-any-return]
