"""Registered plugins of a bus, with their names, implementations, and the points that they have declared.

pluggy compares plugins by equality and tests them for truth. It therefore receives an adapter of each plugin, so that
equal plugins, and plugins that are false in a boolean context, can be registered.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType
from typing import Any

from hookbus._events.call_stack import current_listener
from hookbus._events.checks import OPTIONS_ATTRIBUTE, ConfiguredPlugin, Implementation, Inspection
from hookbus._events.codegen import use_spec_names
from hookbus._events.markers import Options
from hookbus._utils.deprecations import Deprecation
from hookbus._utils.packages import package_label
from hookbus.errors import HookError, HookNotFoundError, suggest_names


class PluggyAdapter:
    """Adapter of a plugin for pluggy, with one attribute per implemented point or action."""

    def __init__(self, implementations: Sequence[Implementation]) -> None:
        for implementation in implementations:
            setattr(self, implementation.target, use_spec_names(implementation))


class RegisteredPlugin:
    """A validated plugin.

    Attributes:
        plugin: The plugin.
        implementations: Implementations by point or action.
        unmatched: Errors of its methods whose point is not declared, by method; None for an optional method.
        adapter: Adapter for pluggy.
        owner: Name of the hook that has registered the plugin, "" if no hook has registered it.
    """

    def __init__(self, inspection: Inspection, owner: str = "") -> None:
        self.plugin, self.owner, self.unmatched = inspection.plugin, owner, inspection.unmatched
        self.implementations = {item.target: item for item in inspection.implementations}
        self.adapter = PluggyAdapter(inspection.implementations)


class FunctionPlugin:
    """Plugin that consists of a function registered by `bus.on`.

    Attributes:
        listener: The function.
    """

    def __init__(self, function: Callable[..., Any], options: Options) -> None:
        self.__module__, self.__name__ = function.__module__, function.__qualname__
        self.listener = function
        setattr(self, OPTIONS_ATTRIBUTE, {"listener": options})


class PluginRegistry(dict[str, RegisteredPlugin]):
    """Registered plugins by instance name, in registration order.

    Another thread may register a plugin during a loop over the registry: loop over a copy, `list(registry.items())`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._names: dict[int, str] = {}  # by the ID of the plugin and of its adapter, which the members keep alive
        self._classes: Counter[str] = Counter()  # number of plugins by the qualified name of each of their classes

    def __setitem__(self, name: str, member: RegisteredPlugin) -> None:
        if name in self:
            self._remove_from_index(self[name])
        super().__setitem__(name, member)
        self._names[id(member.plugin)] = self._names[id(member.adapter)] = name
        self._classes.update(_get_class_names(member.plugin))

    def __delitem__(self, name: str) -> None:
        self._remove_from_index(self[name])
        super().__delitem__(name)

    def _remove_from_index(self, member: RegisteredPlugin) -> None:
        del self._names[id(member.plugin)], self._names[id(member.adapter)]
        self._classes.subtract(_get_class_names(member.plugin))

    def get_name(self, plugin: object) -> str | None:
        """Return the name of a plugin or adapter, None if it is not registered. Compares by identity."""
        return self._names.get(id(plugin))

    def find_caller(self) -> str:
        """Return the name of the hook that is calling, "" if none is: the running listener, or else a method."""
        listener = current_listener()
        if listener is not None and listener.hook in self and self[listener.hook].plugin is listener.plugin:
            return listener.hook
        return self.hook_in_frame(sys._getframe(1)) or ""

    def find_calling_hook(self) -> str:
        """Return the name of the hook that is calling, or that has registered the calling function; "" if none is."""
        name = self.find_caller()
        while name and isinstance(self[name].plugin, FunctionPlugin):
            name = self[name].owner
        return name

    def hook_in_frame(self, frame: FrameType | None) -> str | None:
        """Return the name of the hook whose method is executed by a frame or one of its callers, or None."""
        # `f_locals` is read for methods of registered classes only: reading it creates a dict that keeps the local
        # variables of the frame alive.
        while frame is not None:
            if self._is_in_class(frame.f_code.co_qualname):
                owner = frame.f_locals.get("self")
                if owner is not None and (name := self.get_name(owner)):
                    return name
            frame = frame.f_back
        return None

    def _is_in_class(self, qualname: str) -> bool:
        """Return whether a function is defined in the class of a plugin, or within a method of it."""
        end = qualname.find(".")
        while end >= 0:
            if self._classes.get(qualname[:end]):
                return True
            end = qualname.find(".", end + 1)
        return False

    def find_names(self, hook: object) -> list[str]:
        """Return the names of a plugin, passed as the object, its name, or a function registered by `bus.on`."""
        if isinstance(hook, str):
            return [hook] if hook in self else []
        members = list(self.items())
        return [name for name, member in members if hook is member.plugin or _is_function(member.plugin, hook)]

    def unique_name(self, function: Callable[..., Any], point: str) -> str:
        """Return a name for a function: `module.qualname`, or `module.qualname@point` for a further point."""
        name = f"{function.__module__}.{function.__qualname__}"
        member = self.get(name)
        is_further_point = (
            member is not None and _is_function(member.plugin, function) and point not in member.implementations
        )
        return f"{name}@{point}" if is_further_point else name

    def implementations(self, target: str) -> Iterator[Implementation]:
        """Return the implementations of a point or an action, in registration order."""
        return (member.implementations[target] for member in list(self.values()) if target in member.implementations)


class HooksByName(dict[str, object]):
    """Plugins of a bus by instance name."""

    def __missing__(self, name: str) -> object:
        hint = suggest_names(str(name), self) or " No hook is registered."
        raise HookNotFoundError(f"bus.hooks: no hook has this name, got {name!r}.{hint}")


def ensure_single_bus(hook: ConfiguredPlugin, bus: object) -> None:
    """Raise if a hook is used by an active run of another bus, which would share its counts and files.

    Raises:
        HookError: If the other run is active.
    """
    run = hook._run
    if run is not None and run.is_running and run.bus is not bus:
        raise HookError(
            f"hook {hook.name!r} is used by an active run of another bus. Create a separate hook for each bus, or end "
            "that run first."
        )


def _get_class_names(plugin: object) -> list[str]:
    return [cls.__qualname__ for cls in type(plugin).__mro__]


def _is_function(plugin: object, function: object) -> bool:
    # Bound methods are equal, but not identical, each time they are read from their object.
    return isinstance(plugin, FunctionPlugin) and plugin.listener == function


class PointOwners:
    """Hooks that have declared points. Points that the loop or a package has declared have no entry."""

    def __init__(self) -> None:
        self._owners: dict[str, set[str]] = {}
        self._last: dict[str, str] = {}  # the hook that a point has left with

    def add(self, point: str, hook: str, *, is_new: bool) -> None:
        """Record that a hook declares a point; "" for the loop, which keeps the point from then on."""
        if not hook:
            self._owners.pop(point, None)
        elif is_new or point in self._owners:
            self._owners.setdefault(point, set()).add(hook)

    def allows(self, point: str, hook: str) -> bool:
        """Return whether a hook may declare an existing point again: its own, or that of a hook that has left."""
        owners = self._owners.get(point)
        return owners is not None and (not owners or hook in owners)

    def release(self, hook: str, is_used: Callable[[str], bool]) -> list[str]:
        """Remove a hook.

        Returns:
            Points that no hook has declared and at which no plugin listens any longer.
        """
        for point, owners in self._owners.items():
            if hook in owners:
                owners.remove(hook)
                self._last[point] = hook
        unused = [point for point, owners in self._owners.items() if not owners and not is_used(point)]
        for point in unused:
            del self._owners[point]
        return unused

    def describe(self, point: str) -> str:
        """Return a sentence about the hook that a point has left with, "" if it has not left."""
        return f" The hook {self._last[point]!r} that declared it has left." if point in self._last else ""


def warn_of_deprecations(
    implementations: Iterable[Implementation], find: Callable[[str], Sequence[Deprecation]]
) -> None:
    """Issue a warning for each deprecated point, action or argument that implementations use."""
    for item in implementations:
        for deprecation in find(item.target):
            if deprecation.argument in (None, *item.argument_names):
                _warn_at_listener(item, deprecation)


def _warn_at_listener(item: Implementation, deprecation: Deprecation) -> None:
    # At the definition of the listener, as in pluggy: the call that registers a hook may be anywhere.
    function = inspect.unwrap(getattr(item.call, "__func__", item.call))
    warnings.warn_explicit(
        f"hook {item.hook!r} ({package_label(item.plugin)}): {deprecation.describe(item.target)}",
        deprecation.category,
        filename=function.__code__.co_filename,
        lineno=function.__code__.co_firstlineno,
        module=function.__module__,
        registry=function.__globals__.setdefault("__warningregistry__", {}),
    )
