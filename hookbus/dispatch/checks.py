"""Everything that is verified before a hook is registered.

`inspect_plugin` reads a plugin without running any of its code and returns what it implements, or raises one
error that names the hook, its package, the signature that was found and the one that would be right.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any

from hookbus._packages import package_of
from hookbus.dispatch.elsewhere import named_elsewhere
from hookbus.errors import RegistrationError, did_you_mean
from hookbus.hook import Hook
from hookbus.lifecycle import ALIASES, SPELLINGS, Point
from hookbus.markers import IMPL_ATTRIBUTE, Options

__all__ = ["OPTIONS_ATTRIBUTE", "Implementation", "inspect_plugin", "listed", "refusal"]

_PREFIXES = ("before_", "after_", "on_")
OPTIONS_ATTRIBUTE = "hookbus_options"
"""Where a plugin object may keep the options of its methods, by name, instead of on the functions themselves."""
_NEAR = 0.85  # similarity above which an unmarked method counts as a misspelt point


@dataclass(frozen=True, slots=True)
class Implementation:
    """One method of a plugin that implements a point or an action.

    Attributes:
        hook: the instance name of the plugin.
        plugin: the plugin itself.
        method: the name of the method.
        call: the method, bound.
        target: the canonical name of the point or action.
        options: pluggy's options and ours.
        wants: the arguments it takes by position, under canonical names.
        rest: whether it takes `**kwargs`.
    """

    hook: str
    plugin: object
    method: str
    call: Callable[..., Any]
    target: str
    options: Options
    wants: tuple[str, ...]
    rest: bool


def inspect_plugin(
    plugin: object, name: str, points: Mapping[str, Point], actions: Mapping[str, tuple[str, ...]]
) -> list[Implementation]:
    """Read and check what a plugin implements.

    Args:
        plugin: a `Hook`, or any object or module with marked functions.
        name: its instance name, for messages.
        points: the points of the bus, by name.
        actions: the arguments of each action, by name.

    Returns:
        One entry per implemented point or action.

    Raises:
        RegistrationError: the plugin cannot be registered; the message says why and what would be right.
    """
    check = _Check(plugin, name, points, actions)
    found = [implementation for method in _names(plugin) if (implementation := check.method(method))]
    seen: dict[str, str] = {}
    for each in found:
        if each.target in seen:
            raise check.refuse(f"{seen[each.target]} and {each.method} are both {each.target}: keep one of them.")
        seen[each.target] = each.method
    if not found and not isinstance(plugin, Hook):
        raise check.refuse(_not_a_hook(plugin))
    return found


def listed(hooks: object) -> list[Any]:
    """The hooks that somebody gave as several.

    Raises:
        RegistrationError: it is one hook, or something else that is no list.
    """
    if isinstance(hooks, Iterable) and not isinstance(hooks, (str, Mapping, Hook)):
        return list(hooks)
    raise RegistrationError(f"hooks= takes a list of hooks, not {hooks!r}: write hooks=[...].")


def _not_a_hook(plugin: object) -> str:
    if isinstance(plugin, (str, Mapping)):
        return f"a hook is an object. Settings become one through build_hook: hookbus.build_hook({plugin!r})."
    return "it listens at nothing. Subclass hookbus.Hook, or mark its functions with @hookimpl."


def _names(plugin: object) -> Iterator[str]:
    """Public names of the plugin, in the order of definition where there is one."""
    own = list(vars(plugin)) if hasattr(plugin, "__dict__") else []
    inherited = [name for cls in type(plugin).__mro__ for name in vars(cls)]
    for name in dict.fromkeys([*own, *inherited]):
        if not name.startswith("_") and not (isinstance(plugin, Hook) and name in vars(Hook)):
            yield name


class _Check:
    """The checks of one plugin; every refusal begins with who it is."""

    def __init__(
        self, plugin: object, name: str, points: Mapping[str, Point], actions: Mapping[str, tuple[str, ...]]
    ) -> None:
        self.plugin, self.name, self.points, self.actions = plugin, name, points, actions
        self.own_options = inspect.getattr_static(plugin, OPTIONS_ATTRIBUTE, {})

    def refuse(self, why: str) -> RegistrationError:
        return refusal(self.plugin, self.name, why)

    def method(self, name: str) -> Implementation | None:
        static = inspect.getattr_static(self.plugin, name, None)
        function = static.__func__ if isinstance(static, (staticmethod, classmethod)) else static
        options = self._options(name, static, function)
        target = (options or {}).get("specname") or ALIASES.get(name, name)
        target = ALIASES.get(target, target)
        known = target in self.points or target in self.actions
        is_hook = isinstance(self.plugin, Hook)
        if not isinstance(function, (FunctionType, MethodType)):
            if known and is_hook and callable(function):
                kind = type(function).__name__
                raise self.refuse(f"{name} is a {kind}, not a method: write a method {name} that calls it.")
            return None
        if not known:
            self._misspelt(name, target, marked=options is not None)
            return None
        return self._implementation(name, target, function, dict(options or {})) if is_hook or options else None

    def _options(self, name: str, *marked: Any) -> Options | None:
        """What `@hookimpl` left on the function, or on the static or class method around it."""
        found = [self.own_options.get(name), *(getattr(each, IMPL_ATTRIBUTE, None) for each in marked)]
        return next((options for options in found if isinstance(options, dict)), None)

    def _misspelt(self, name: str, target: str, marked: bool) -> None:
        """Refuse a name that was meant to be a point; leave every other one alone."""
        is_hook = isinstance(self.plugin, Hook)
        if marked or (is_hook and name.startswith(_PREFIXES)):
            raise self.refuse(self._no_point(target))
        if not is_hook:
            return
        for near in difflib.get_close_matches(name, self.points, n=1, cutoff=_NEAR):
            allowed = {"run", *SPELLINGS, *self.points[near].args}
            if set(inspect.signature(getattr(self.plugin, name)).parameters) <= allowed:
                raise self.refuse(
                    f"{name} looks like the point {near}. Write {self.points[near].signature}, or give the "
                    "method another name."
                )

    def _no_point(self, name: str) -> str:
        if elsewhere := named_elsewhere(name):
            trainers, point = elsewhere
            return f"{name} is a name of {trainers}; here it is {self.points[point].signature}."
        near = did_you_mean(name, [*self.points, *self.actions, *ALIASES])
        return (
            f"{name} is not a point.{near} Points of your own are declared with bus.declare({name!r}, args=(...)); a "
            "method that is none gets another name."
        )

    def _implementation(self, name: str, target: str, function: Callable[..., Any], options: Options) -> Implementation:
        is_action = target in self.actions
        args = self.actions[target] if is_action else self.points[target].args
        call, wants, rest = getattr(self.plugin, name), [], False
        name = call.__name__ if name in self.own_options else name
        self._kind(name, target, function, options, is_action)
        for parameter in inspect.signature(call).parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD and not is_action:
                rest = True
                continue
            self._parameter(f"{name}{inspect.signature(call)}", target, parameter, args, is_action)
            wants.append(SPELLINGS.get(parameter.name, parameter.name))
        if len(set(wants)) < len(wants):
            raise self.refuse(f"{name} asks for one argument under two names: {', '.join(wants)}.")
        self._schedule(name, target, options, is_action)
        return Implementation(self.name, self.plugin, name, call, target, options, tuple(wants), rest)

    def _kind(self, name: str, target: str, function: Callable[..., Any], options: Options, is_action: bool) -> None:
        wrapper = options.get("wrapper") or options.get("hookwrapper")
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise self.refuse(f"{name} is async; the training loop does not await. Make it a plain method.")
        if options.get("hookwrapper"):
            raise self.refuse(f"{name}: old-style wrappers are not supported. Use @hookimpl(wrapper=True).")
        if not is_action and wrapper:
            raise self.refuse(
                f"{name}: a wrapper belongs to an action ({', '.join(self.actions)}), not to a point. To surround "
                f"{target}, listen at its before_ and after_ points: priorities nest like context managers."
            )
        if not is_action and (options.get("tryfirst") or options.get("trylast")):
            raise self.refuse(
                f"{name}: tryfirst and trylast belong to actions. At a point say priority=, before= or after=."
            )
        if inspect.isgeneratorfunction(function) and not wrapper:
            hint = " Mark it with @hookimpl(wrapper=True)." if is_action else " Remove the yield."
            raise self.refuse(f"{name} is a generator, so calling it would do nothing.{hint}")
        if wrapper and not inspect.isgeneratorfunction(function):
            raise self.refuse(f"{name} is marked as a wrapper but does not yield; it must yield exactly once.")

    def _parameter(
        self, found: str, target: str, parameter: inspect.Parameter, args: tuple[str, ...], is_action: bool
    ) -> None:
        right = f"{target}({', '.join(('run', *args))})"
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            star = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
            raise self.refuse(f"{found} takes {star}{parameter.name}; name the arguments it wants, of {right}.")
        if parameter.kind is parameter.KEYWORD_ONLY:
            raise self.refuse(f"{found}: {parameter.name!r} is keyword-only; remove the * before it.")
        if SPELLINGS.get(parameter.name, parameter.name) not in ("run", *args):
            raise self.refuse(
                f"{found} asks for {parameter.name!r}, which {target} does not have."
                f"{did_you_mean(parameter.name, ('run', *args))} The point is {right}; name any of these."
            )
        if is_action and parameter.default is not parameter.empty:
            raise self.refuse(f"{found}: an action fills every argument, so {parameter.name!r} takes no default.")

    def _schedule(self, name: str, target: str, options: Options, is_action: bool) -> None:
        if options.get("when") is None:
            return
        if is_action or self.points[target].unit is None:
            raise self.refuse(f"{name}: nothing is counted at {target}, so when= has no meaning there.")


def refusal(plugin: object, name: str, why: str) -> RegistrationError:
    """The error for a plugin that was refused; it begins with who that is.

    Args:
        plugin: the plugin.
        name: its instance name.
        why: a sentence.
    """
    return RegistrationError(f"hook {name!r} ({package_of(plugin)}) was not registered: {why}")
