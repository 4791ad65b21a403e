"""PluginManager of the bus, which validates plugins before pluggy registers them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import pluggy

from hookbus._events.call_stack import in_event
from hookbus._events.checks import AliasLookup, Inspection, is_configured, registration_error
from hookbus._events.codegen import generate_spec_class
from hookbus._events.listeners import check_common_keys, check_listeners, check_priority
from hookbus._events.markers import PROJECT
from hookbus._events.points import Point, parse_point
from hookbus._events.registry import (
    FunctionPlugin,
    PluginRegistry,
    RegisteredPlugin,
    ensure_single_bus,
    warn_of_deprecations,
)
from hookbus._utils import packages
from hookbus._utils.deprecations import Deprecation
from hookbus.errors import HookError, PointError, RegistrationError

if TYPE_CHECKING:
    from hookbus._events.bus import EventBus


_LISTED = (
    "it lists what load_setuptools_entrypoints has loaded. Read bus.hooks, or run `hookbus hooks` to list the "
    "installed packages."
)
_NO_DISPATCH = (
    "events are not dispatched through pluggy. Register a listener with bus.on, or record the events with "
    "hookbus.testing.RecordingBus."
)


def _refuse(method: str, explanation: str) -> Callable[..., NoReturn]:
    """Return the method of a feature of pluggy that would have no effect on a bus."""

    def raise_error(*_: Any, **__: Any) -> NoReturn:
        raise HookError(f"bus.pm.{method} is not supported: {explanation}")

    return raise_error


class BusPluginManager(pluggy.PluginManager):
    """PluginManager of a bus.

    pluggy stores the adapters of the plugins; queries return the plugins themselves.

    Attributes:
        members: Registered plugins by name, with their implementations.
        warns_of_deprecations: Whether registration warns of deprecated points. False for a bus that only validates.
    """

    add_hookcall_monitoring = _refuse("add_hookcall_monitoring", _NO_DISPATCH)
    enable_tracing = _refuse("enable_tracing", _NO_DISPATCH)
    list_plugin_distinfo = _refuse("list_plugin_distinfo", _LISTED)
    list_plugin_distributions = _refuse("list_plugin_distributions", _LISTED)
    load_setuptools_entrypoints = _refuse(
        "load_setuptools_entrypoints",
        "installed hooks are registered by name only. Register hookbus.build_hook({'type': ...}).",
    )

    def __init__(self, bus: EventBus, find_alias: AliasLookup) -> None:
        super().__init__(PROJECT)
        self._bus, self._find_alias = bus, find_alias
        self._registering: RegisteredPlugin | None = None  # the plugin whose implementations pluggy is reading
        # Unregistered plugins, and the functions that call their `cleanup`.
        self._pending_cleanups: list[tuple[object, Callable[..., Any] | None]] = []
        self.members = PluginRegistry()
        self.warns_of_deprecations = True

    def register(self, plugin: object, name: str | None = None, *, priority: int | None = None) -> str | None:
        """Register a plugin, see `EventBus.register`.

        Returns:
            Instance name, or None if the plugin is disabled (`enabled: false`) or the name is blocked.
        """
        name = name or self._bus.default_name(plugin)
        if priority is not None:
            check_priority(priority, plugin, name)
        if (is_configured(plugin) and not plugin.config.enabled) or self.is_blocked(name):
            return None
        self._check_registration(plugin, name)
        # Outside of the lock: validation may import a package that publishes points.
        inspection = self._inspect(plugin, name, priority)
        # A function of the loop may be unregistered after it has registered a hook, which stays.
        is_function, members = isinstance(plugin, FunctionPlugin), self.members
        owner = members.find_caller() if is_function else members.find_calling_hook()
        member = RegisteredPlugin(inspection, owner)
        if self.warns_of_deprecations:
            warn_of_deprecations(inspection.implementations, self._bus.get_deprecations)
        with self._bus.lock:
            if priority is not None:
                self._bus.table.priority_overrides[name] = priority
            self._add(member, name)
        self._bus.admit(name, plugin)
        return name

    def _add(self, member: RegisteredPlugin, name: str) -> None:
        self._registering, plugin = member, member.plugin
        try:
            super().register(member.adapter, name)
        finally:
            self._registering = None
        self.members[name] = member
        for target in member.implementations:
            # Reversed: the new implementation is near the end.
            implementations = reversed(getattr(self.hook, target).get_hookimpls())
            next(item for item in implementations if item.plugin_name == name).plugin = plugin
        if is_configured(plugin):
            plugin._name, plugin._run = name, self._bus.current
        self._bus.invalidate()

    def unregister(self, plugin: object | None = None, name: str | None = None) -> Any | None:
        """Unregister a plugin, passed as the object or by name.

        Its `cleanup` is called if a run is active, after the current event if there is one.

        Returns:
            The plugin, or None if no plugin has the name.

        Raises:
            HookError: If the name belongs to another plugin.
        """
        name = self.members.get_name(plugin) if name is None else name
        member = self.members.get(name) if name is not None else None
        if name is None or member is None:
            return super().unregister(plugin, name)
        if plugin is not None and plugin is not member.plugin:
            raise HookError(f"unregister: {name!r} is not the name of {plugin!r}. Pass the plugin or its name.")
        cleanup = self._remove(name, member)
        self._bus.release(name, member.plugin)
        self.call_after_event(cleanup, member.plugin)
        return member.plugin

    def call_after_event(self, function: Callable[..., Any] | None, plugin: object = None) -> None:
        """Call a function now or, within an event, at the next boundary.

        Args:
            function: The function, None if only the plugin is to be detached.
            plugin: Plugin that is detached from its run afterwards if it is not registered.
        """
        self._pending_cleanups.append((plugin, function))
        # Processed like a request at the next boundary, because a listener of the plugin may be running.
        self._bus.current.pending = True
        if not in_event(self._bus.current):
            self.run_pending_cleanups()

    def run_pending_cleanups(self) -> None:
        """Call `cleanup` of the unregistered plugins and detach them from their run. No event may be in progress."""
        while self._pending_cleanups:
            plugin, cleanup = self._pending_cleanups.pop(0)
            try:
                if cleanup is not None:
                    cleanup()
            finally:
                if is_configured(plugin) and not self.is_registered(plugin):
                    plugin._run = None

    def _remove(self, name: str, member: RegisteredPlugin) -> Callable[..., Any] | None:
        """Remove a plugin from pluggy and the tables.

        Returns:
            Function that calls its `cleanup`, or None if no run is active.
        """
        run, table = self._bus.current, self._bus.table
        # Compiled before the removal, after which the tables no longer contain its listeners.
        cleanup = table.compile_for_hook("cleanup", name, run) if run.is_running else None
        with self._bus.lock:
            self._remove_adapter(name, member)
            del self.members[name]
            table.discard_hook(name)
            self._bus.invalidate()
        return cleanup

    def _remove_adapter(self, name: str, member: RegisteredPlugin) -> None:
        # pluggy compares the plugins of all implementations of a point with the one to remove.
        self._set_reported_plugins(member, lambda other: other.adapter)
        try:
            super().unregister(member.adapter, name)
        finally:
            self._set_reported_plugins(member, lambda other: other.plugin)

    def _set_reported_plugins(self, member: RegisteredPlugin, get_plugin: Callable[[RegisteredPlugin], object]) -> None:
        """Set the plugins that pluggy reports for the implementations of the points of a member."""
        for target in member.implementations:
            for implementation in getattr(self.hook, target).get_hookimpls():
                implementation.plugin = get_plugin(self.members[implementation.plugin_name])

    def parse_hookimpl_opts(self, plugin: object, name: str) -> Any:
        """Return the options of an implementation to pluggy, as determined by the validation."""
        implementation = self._registering.implementations.get(name) if self._registering is not None else None
        if implementation is None:
            return None
        options = {key: implementation.options.get(key, False) for key in ("wrapper", "tryfirst", "trylast")}
        # The adapter names its attributes after the target, so that `specname` is resolved already.
        return {**options, "hookwrapper": False, "optionalhook": False, "specname": None}

    def get_plugin(self, name: str) -> Any | None:
        """Return the plugin with a name, None if there is none."""
        member = self.members.get(name)
        return member.plugin if member is not None else None

    def get_plugins(self) -> set[Any]:
        """Return all registered plugins."""
        return {member.plugin for member in list(self.members.values())}

    def get_name(self, plugin: object) -> str | None:
        """Return the name of a plugin, None if it is not registered."""
        return self.members.get_name(plugin)

    def is_registered(self, plugin: object) -> bool:
        """Return whether a plugin is registered."""
        return self.members.get_name(plugin) is not None

    def list_name_plugin(self) -> list[tuple[str, Any]]:
        """Return pairs of name and plugin; the plugin is None if the name is blocked."""
        return [(name, self.get_plugin(name)) for name, _ in super().list_name_plugin()]

    def get_canonical_name(self, plugin: object) -> str:
        """Return the name of a plugin, or the name that it would be registered with."""
        return self.members.get_name(plugin) or self._bus.default_name(plugin)

    def subset_hook_caller(self, name: str, remove_plugins: Iterable[object]) -> Any:
        """Return the pluggy hook caller of a point without the implementations of some plugins.

        Raises:
            HookError: If a plugin that implements the point is compared by value.
        """
        removed = list(remove_plugins)
        for plugin in (*removed, *(item.plugin for item in getattr(self.hook, name).get_hookimpls())):
            if getattr(type(plugin), "__eq__", None) is not object.__eq__:
                raise HookError(
                    f"subset_hook_caller: {plugin!r} defines __eq__, and pluggy would remove all plugins that are "
                    "equal to it. Unregister the plugins instead."
                )
        return super().subset_hook_caller(name, removed)

    # -- points declared after the registration ----------------------------------------------

    def find_unmatched(self, names: Collection[str] | None = None) -> Iterator[RegistrationError]:
        """Yield the errors of methods that match no declared point.

        Args:
            names: Names of plugins. Default: all.
        """
        for name, member in list(self.members.items()):
            if names is None or name in names:
                yield from filter(None, member.unmatched.values())

    def check_pending(self) -> None:
        """Check that every method that must be a point matches a declared point, as each run does when it begins.

        Raises:
            RegistrationError: If a method matches none.
        """
        if errors := list(self.find_unmatched()):
            raise RegistrationError("\n".join(map(str, errors)))

    def inspect_for(
        self,
        points: Mapping[str, Point],
        actions: Mapping[str, tuple[str, ...]] | None = None,
        deprecations: Sequence[Deprecation] = (),
    ) -> dict[str, RegisteredPlugin]:
        """Return the registered plugins that implement more if further points and actions are declared, by name.

        Args:
            points: Further points.
            actions: Arguments of further actions, by name. Default: none.
            deprecations: Deprecations of the further points and actions, of which the plugins are warned. Default:
                none.

        Raises:
            RegistrationError: If the implementation of one is invalid.
        """
        every, every_action = {**self._bus.points, **points}, {**self._bus.actions, **(actions or {})}
        updated, declared = {}, {*points, *(actions or ())}
        for name, member in list(self.members.items()):
            if member.unmatched or any(hasattr(type(member.plugin), target) for target in declared):
                inspection = Inspection(member.plugin, name, every, every_action, self._find_alias)
                self._check_inspection(inspection)
                updated[name] = RegisteredPlugin(inspection, member.owner)
        for member in updated.values() if self.warns_of_deprecations else ():
            new = (item for target, item in member.implementations.items() if target in declared)
            warn_of_deprecations(new, lambda _: deprecations)
        return updated

    def update(self, members: Mapping[str, RegisteredPlugin]) -> None:
        """Replace members by those of `inspect_for`, in the same order. Requires that the points are declared."""
        for name, member in members.items():
            with self._bus.lock:
                self._remove_adapter(name, self.members[name])
                self._add(member, name)

    # -- features of pluggy --------------------------------------------------------------------

    def add_specs(self, arguments: Mapping[str, Sequence[str]], *, firstresult: bool = False) -> None:
        """Add specs for points or actions of the bus, whose arguments are passed by name."""
        super().add_hookspecs(generate_spec_class(arguments, firstresult=firstresult))

    def remove_spec(self, point: str) -> None:
        """Remove the spec of a point at which no plugin listens."""
        delattr(self.hook, point)

    def add_hookspecs(self, module_or_class: Any) -> None:
        """Declare the functions of a module or class that are marked with `@hookspec` as points, see `bus.declare`.

        Raises:
            PointError: If no function is marked, or a point cannot be declared.
        """
        marked = [name for name in dir(module_or_class) if self.parse_hookspec_opts(module_or_class, name) is not None]
        if not marked:
            raise PointError(f"{module_or_class!r} contains no function marked with @hookspec. Mark its functions.")
        for name in marked:
            method = getattr(module_or_class, name)
            self._bus.declare_point(parse_point(method, skip=1 if isinstance(module_or_class, type) else 0))

    def _check_registration(self, plugin: object, name: str) -> None:
        if is_configured(plugin):
            ensure_single_bus(plugin, self._bus)
        existing = self.members.get_name(plugin)
        if isinstance(plugin, type):
            problem = f"expected an instance, got the class {plugin.__name__}. Register {plugin.__name__}(...)."
        elif not isinstance(name, str):
            problem = f"expected the name to be a string, got {name!r}."
        elif existing is not None:
            problem = f"the object is already registered as {existing!r}. Unregister it first."
        elif name in self.members:
            other = packages.package_label(self.members[name].plugin)
            problem = f"a hook with this name is already registered ({other}). Set another `name`."
        else:
            return
        raise registration_error(plugin, str(name), problem)

    def _inspect(self, plugin: object, name: str, priority: int | None) -> Inspection:
        inspection = self._inspect_and_discover(plugin, name)
        # A function names its point, so that an unknown point is an error at once.
        if isinstance(plugin, FunctionPlugin) and (error := next(filter(None, inspection.unmatched.values()), None)):
            raise error
        self._check_inspection(inspection, priority)
        return inspection

    def _inspect_and_discover(self, plugin: object, name: str) -> Inspection:
        bus = self._bus
        try:
            inspection = Inspection(plugin, name, bus.points, bus.actions, self._find_alias)
        except RegistrationError:
            if not self._discover_points(plugin):
                raise
        else:
            if not inspection.unmatched or not self._discover_points(plugin):
                return inspection
        return Inspection(plugin, name, bus.points, bus.actions, self._find_alias)

    def _discover_points(self, plugin: object) -> bool:
        # The plugin may implement points of its own or another package, which are imported only when needed.
        return self._bus.discover_points(set(dir(plugin)), packages.get_module_name(plugin))

    def _check_inspection(self, inspection: Inspection, priority: int | None = None) -> None:
        check_listeners(inspection)
        # A key may affect a listener at a point that is declared later.
        if not inspection.unmatched:
            check_common_keys(inspection, priority)
