"""The members of a bus: who is there, under which name, and what each of them implements.

pluggy compares plugins by equality. So that two plugins that are equal can both be members, and an empty one is not
taken for none, pluggy is given a face of each: an object of its own that has nothing but the implementations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

from hookbus.dispatch.checks import OPTIONS_ATTRIBUTE, Implementation
from hookbus.errors import HookError
from hookbus.hook import Hook
from hookbus.markers import Options

if TYPE_CHECKING:
    from hookbus.bus import HookBus

__all__ = ["FunctionPlugin", "Member", "Members", "see_that_it_is_free"]


class Face:
    """What pluggy sees of a plugin: one attribute per point or action that it implements."""

    def __init__(self, found: Sequence[Implementation]) -> None:
        for each in found:
            setattr(self, each.target, each.call)


class Member:
    """A plugin that was found to be in order.

    Attributes:
        plugin: the plugin.
        found: what it implements, by point or action.
        face: what pluggy sees of it.
    """

    def __init__(self, plugin: object, found: Sequence[Implementation]) -> None:
        self.plugin = plugin
        self.found = {each.target: each for each in found}
        self.face = Face(found)


class FunctionPlugin:
    """A function, registered as a plugin of its own by `bus.on`.

    Attributes:
        listener: the function.
    """

    def __init__(self, function: Callable[..., Any], options: Options) -> None:
        self.__module__, self.__name__ = function.__module__, function.__qualname__
        self.listener = function
        setattr(self, OPTIONS_ATTRIBUTE, {"listener": options})


class Members(dict[str, Member]):
    """The members by instance name, in the order of registration."""

    def name_of(self, plugin: object) -> str | None:
        """The name under which a plugin, or its face, is a member; None if it is not. Equal ones are not the same."""
        return next((name for name, each in list(self.items()) if plugin is each.plugin or plugin is each.face), None)

    def running_in(self, frame: FrameType | None) -> str | None:
        """The name of the hook whose method is running in a frame or in one of its callers; None for none.

        Only methods of classes that members are of are looked into: what is read of a frame stays alive as long as it.
        """
        classes = {cls.__qualname__ for each in self.values() for cls in type(each.plugin).__mro__}
        starts = tuple(f"{name}." for name in classes)
        while frame is not None:
            if frame.f_code.co_qualname.startswith(starts):
                owner = frame.f_locals.get("self")
                if owner is not None and (name := self.name_of(owner)):
                    return name
            frame = frame.f_back
        return None

    def names_of(self, hook: object) -> list[str]:
        """The names of what a user calls a hook: the plugin, its name, or a function that `bus.on` has registered."""
        if isinstance(hook, str):
            return [hook] if hook in self else []
        return [name for name, each in self.items() if hook is each.plugin or _is_function(each.plugin, hook)]

    def free_name(self, function: Callable[..., Any], point: str) -> str:
        """A name for a function: module.qualname, with the point behind it where it listens at another one already."""
        name = f"{function.__module__}.{function.__qualname__}"
        there = self.get(name)
        elsewhere = there is not None and _is_function(there.plugin, function) and point not in there.found
        return f"{name}@{point}" if elsewhere else name

    def implementations(self, target: str) -> Iterator[Implementation]:
        """Who implements a point or an action."""
        return (each.found[target] for each in self.values() if target in each.found)


def see_that_it_is_free(hook: Hook, bus: HookBus) -> None:
    """See that a hook is not in the middle of a run of another bus: its counts and files would be those of both.

    Raises:
        HookError: it is.
    """
    run = hook._run
    if run is not None and run.alive and run.bus is not bus:
        raise HookError(
            f"hook {hook.name!r} takes part in a run of another bus, which is still going on: make a hook of its own "
            "for each bus, or end that run first."
        )


def _is_function(plugin: object, function: object) -> bool:
    return isinstance(plugin, FunctionPlugin) and plugin.listener == function
