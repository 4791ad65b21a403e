"""pluggy's manager of the bus: our checks before a member is let in, and a word to the bus after every change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pluggy

from hookbus import _packages
from hookbus._running import handling
from hookbus.dispatch.actions import ACTIONS
from hookbus.dispatch.checks import Implementation, inspect_plugin, refusal
from hookbus.dispatch.compiling import load_text
from hookbus.dispatch.listeners import check_listeners
from hookbus.dispatch.members import Member, Members, see_that_it_is_free
from hookbus.errors import HookError, RegistrationError
from hookbus.hook import Hook
from hookbus.lifecycle import SPELLINGS, Point
from hookbus.markers import PROJECT

if TYPE_CHECKING:
    from hookbus.bus import HookBus

__all__ = ["Manager", "spec_class"]


class Manager(pluggy.PluginManager):
    """The PluginManager of a bus.

    pluggy keeps the faces of the members; asked for plugins, it answers with the plugins themselves.

    Args:
        bus: the bus whose points the members listen at.

    Attributes:
        members: the plugins by name, with what was found in them.
    """

    def __init__(self, bus: HookBus) -> None:
        super().__init__(PROJECT)
        self._bus = bus
        self._entering: Member | None = None
        self._leaving: list[tuple[object, Callable[..., Any] | None]] = []
        self.members = Members()

    def register(self, plugin: object, name: str | None = None) -> str | None:
        """Add a plugin; what cannot be added is refused with a RegistrationError."""
        name = name or self._bus.name_of(plugin)
        if self.is_blocked(name):
            return None
        self._refuse_member(plugin, name)
        member = Member(plugin, self._inspect(plugin, name))
        with self._bus.lock:
            self._add(member, name)
        return name

    def _add(self, member: Member, name: str) -> None:
        self._entering, plugin = member, member.plugin
        try:
            super().register(member.face, name)
        finally:
            self._entering = None
        self.members[name] = member
        if isinstance(plugin, Hook):
            plugin._name, plugin._run = name, self._bus.current
        self._bus.changed()

    def unregister(self, plugin: object | None = None, name: str | None = None) -> Any | None:
        """Remove a plugin, given by itself or by name; None where there is none of this name.

        In a run that is going on its `cleanup` is called; during an event, after it.

        Raises:
            HookError: the name is that of another plugin.
        """
        name = self.members.name_of(plugin) if name is None else name
        member = self.members.get(name) if name is not None else None
        if name is None or member is None:
            return super().unregister(plugin, name)
        if plugin is not None and plugin is not member.plugin:
            raise HookError(f"{name!r} is not the name of {plugin!r}, so nothing was unregistered.")
        self._leaving.append((member.plugin, self._remove(name, member)))
        self._bus.current.pending = True
        if not handling(self._bus.current):
            self.release()
        return member.plugin

    def release(self) -> None:
        """Let those that have left clean up, and forget their run. Called when no event is being handled."""
        while self._leaving:
            plugin, cleanup = self._leaving.pop(0)
            try:
                if cleanup is not None:
                    cleanup()
            finally:
                if isinstance(plugin, Hook) and not self.is_registered(plugin):
                    plugin._run = None

    def _remove(self, name: str, member: Member) -> Callable[..., Any] | None:
        """Remove a member. Returns what lets it clean up, where it leaves a run that goes on."""
        run, table = self._bus.current, self._bus.table
        cleanup = table.cleanup_of(name, run) if run.alive else None
        with self._bus.lock:
            super().unregister(member.face, name)
            del self.members[name]
            table.forget(name)
            self._bus.changed()
        return cleanup

    def parse_hookimpl_opts(self, plugin: object, name: str) -> Any:
        """Tell pluggy what our checks have found."""
        found = self._entering.found.get(name) if self._entering is not None else None
        if found is None:
            return None
        own = {key: found.options.get(key, False) for key in ("wrapper", "tryfirst", "trylast")}
        return {**own, "hookwrapper": False, "optionalhook": False, "specname": None}

    def get_plugin(self, name: str) -> Any | None:
        """The plugin of this name."""
        member = self.members.get(name)
        return member.plugin if member is not None else None

    def get_plugins(self) -> set[Any]:
        """All plugins."""
        return {member.plugin for member in self.members.values()}

    def get_name(self, plugin: object) -> str | None:
        """The name of a plugin, None if it is not registered."""
        return self.members.name_of(plugin)

    def is_registered(self, plugin: object) -> bool:
        """Whether a plugin is a member."""
        return self.members.name_of(plugin) is not None

    def list_name_plugin(self) -> list[tuple[str, Any]]:
        """Names and plugins; None for the plugin where a name is blocked."""
        return [(name, self.get_plugin(name)) for name, _ in super().list_name_plugin()]

    def get_hookcallers(self, plugin: object) -> Any:
        """The hooks of pluggy that a plugin implements, None if it is not registered."""
        name = self.members.name_of(plugin)
        return None if name is None else super().get_hookcallers(self.members[name].face)

    def _refuse_member(self, plugin: object, name: str) -> None:
        if isinstance(plugin, type):
            what = plugin.__name__
            raise refusal(plugin, name, f"{what} is a class. Register an instance of it: {what}(...).")
        if not isinstance(name, str):
            raise refusal(plugin, str(name), f"its name is {name!r}, and a name is a text.")
        if isinstance(plugin, Hook):
            see_that_it_is_free(plugin, self._bus)
        there = self.members.name_of(plugin)
        if there is not None:
            raise refusal(plugin, name, f"this very object is registered already, as {there!r}.")
        if name in self.members:
            other = _packages.package_of(self.members[name].plugin)
            raise refusal(plugin, name, f"there is a hook of this name already ({other}). Give a name: name=...")

    def _inspect(self, plugin: object, name: str) -> list[Implementation]:
        bus = self._bus
        try:
            found = inspect_plugin(plugin, name, bus.points, ACTIONS)
        except RegistrationError:
            if not bus.find_points(set(dir(plugin)), _packages.module_of(plugin)):
                raise
            found = inspect_plugin(plugin, name, bus.points, ACTIONS)
        check_listeners(found, plugin, name, bus.points)
        return found


def spec_class(points: Mapping[str, Point]) -> type:
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
