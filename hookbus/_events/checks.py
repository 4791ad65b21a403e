"""Validation of plugins before registration.

`Inspection` reads a plugin without executing its code. It contains the implementations, or raises an error with the
name of the hook, its package, its signature, and the expected signature.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import FunctionType, MethodType
from typing import Any, ClassVar, Protocol, TypeGuard

from hookbus._events.markers import IMPL_ATTRIBUTE, Options
from hookbus._events.points import ARGUMENT_ALIASES, POINT_ALIASES, HookUnit, Point, bind_method, get_static_method
from hookbus._events.schedules import FieldConfig, Schedule
from hookbus._utils.deprecations import DEPRECATIONS_ATTRIBUTE
from hookbus._utils.known_keys import explain_hook_settings
from hookbus._utils.packages import package_label
from hookbus.errors import MISSPELLING_CUTOFF, RegistrationError, suggest_names

_PREFIXES = ("before_", "after_", "on_")  # a method of a hook with one of these must be a point
OPTIONS_ATTRIBUTE = "hookbus_options"
"""Attribute of a plugin that contains the options of its methods, by name, instead of marks on the functions."""
CONFIGURED_ATTRIBUTE = "_hookbus_configured"
"""Attribute of a class that implements `ConfiguredPlugin`."""
AliasLookup = Callable[[str], tuple[str, str] | None]
"""Function that returns the frameworks that define a callback name, and the corresponding point, or None."""


class PluginConfig(FieldConfig, Protocol):
    """Config of a plugin, with the fields that the bus evaluates. See `hookbus.HookConfig`."""

    enabled: bool
    priority: int | None
    when: Schedule | None
    frequency: int | None
    on_error: str | None


class ConfiguredPlugin(Protocol):
    """Plugin with a config, a priority and a reference to the run. See `hookbus.Hook`.

    Its methods with the name of a point are listeners without a marker. A class that implements the protocol sets the
    attribute `CONFIGURED_ATTRIBUTE`; its own methods are not compared with points, those of subclasses are.
    """

    priority: int
    observer: ClassVar[bool]
    unit: HookUnit
    _name: str | None
    _run: Any

    @property
    def name(self) -> str:
        """Instance name."""

    @property
    def config(self) -> PluginConfig:
        """Settings."""

    def should_trigger(self, step: int) -> bool:
        """Return whether the listeners are due at the iteration, step or epoch with index `step`, from 0."""


def is_configured(plugin: object) -> TypeGuard[ConfiguredPlugin]:
    """Return whether the class of a plugin implements `ConfiguredPlugin`."""
    # Declared rather than structural: a structural check would evaluate the properties of plugins, which may raise.
    return hasattr(type(plugin), CONFIGURED_ATTRIBUTE)


def configured_base(plugin: ConfiguredPlugin) -> type:
    """Return the base class of a plugin that implements `ConfiguredPlugin`."""
    return next(cls for cls in type(plugin).__mro__ if CONFIGURED_ATTRIBUTE in vars(cls))


@dataclass(frozen=True, slots=True)
class Implementation:
    """Method of a plugin that implements a point or an action.

    Attributes:
        hook: Instance name of the plugin.
        plugin: The plugin.
        method: Name of the method.
        call: Bound method.
        target: Canonical name of the point or action.
        options: Options of the marker.
        argument_names: Names of its positional arguments, in canonical spelling.
        accepts_kwargs: Whether it accepts `**kwargs`.
    """

    hook: str
    plugin: object
    method: str
    call: Callable[..., Any]
    target: str
    options: Options
    argument_names: tuple[str, ...]
    accepts_kwargs: bool


def as_hook_list(hooks: object) -> list[Any]:
    """Return an iterable of hooks as a list.

    Raises:
        RegistrationError: If the argument is a single hook or not an iterable.
    """
    if isinstance(hooks, Iterable) and not isinstance(hooks, (str, Mapping)) and not is_configured(hooks):
        return list(hooks)
    raise RegistrationError(f"hooks: expected a list of hooks, got {hooks!r}. Pass hooks=[...].")


def _not_a_hook_message(plugin: object) -> str:
    if isinstance(plugin, (str, Mapping)):
        hint = "" if isinstance(plugin, str) else explain_hook_settings(plugin)
        return f"expected a hook, got settings. Build the hook with hookbus.build_hook({plugin!r}).{hint}"
    if callable(getattr(type(plugin), "write_scalar", None)):
        cls = type(plugin).__name__
        return f"a writer is not a hook. Build its hook with hookbus.build_hook({{'type': {cls}, ...}})."
    return "it implements no point or action. Subclass hookbus.Hook, or mark its functions with @hookimpl."


def _iter_names(plugin: object) -> Iterator[str]:
    """Yield the public attribute names of the plugin, in the order of definition."""
    own = list(vars(plugin)) if hasattr(plugin, "__dict__") else []
    base = configured_base(plugin) if is_configured(plugin) else object
    # The empty methods that `Hook` inherits are no listeners. Looking them up for each hook is slow.
    inherited = [name for cls in type(plugin).__mro__ if cls not in base.__mro__ for name in vars(cls)]
    # The methods of `Hook` itself, such as `check`, are not compared with points.
    ignored = vars(base)
    for name in dict.fromkeys([*own, *inherited]):
        if not name.startswith("_") and name not in ignored:
            yield name


@dataclass(slots=True)
class Inspection:
    """Validation of one plugin, and its result.

    Attributes:
        plugin: A `Hook`, or any object or module with marked functions.
        name: Instance name, for error messages.
        points: Points of the bus, by name.
        actions: Arguments of each action, by name.
        find_alias: Lookup of callback names of other frameworks, for error messages.
        implementations: One entry per implemented point or action.
        unmatched: Errors of the methods that must be points and that match no declared point, by method; None for a
            method marked as optional. They become listeners if their point is declared.

    Raises:
        RegistrationError: If the plugin is invalid, or a name is probably a misspelled point. The message states the
            reason and the fix.
    """

    plugin: object
    name: str
    points: Mapping[str, Point]
    actions: Mapping[str, tuple[str, ...]]
    find_alias: AliasLookup
    implementations: list[Implementation] = field(default_factory=list)
    unmatched: dict[str, RegistrationError | None] = field(default_factory=dict)
    own_options: Mapping[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        # Static lookup throughout: `getattr` would execute properties of the plugin.
        self.own_options = inspect.getattr_static(self.plugin, OPTIONS_ATTRIBUTE, {})
        methods: dict[str, str] = {}
        for name in _iter_names(self.plugin):
            if (item := self._check_method(name)) is None:
                continue
            # Aliases and `specname` allow two methods for one point, whose relative order would be undefined.
            if item.target in methods:
                raise self.fail(
                    f"{methods[item.target]} and {item.method} both implement {item.target}. Remove one of them."
                )
            methods[item.target] = item.method
            self.implementations.append(item)
        # A `Hook` without listeners may still contribute state or a service; a plain plugin cannot.
        if not self.implementations and not self.unmatched and not is_configured(self.plugin):
            raise self.fail(_not_a_hook_message(self.plugin))

    def fail(self, problem: str) -> RegistrationError:
        """Return the error for the plugin with a reason and a fix."""
        return registration_error(self.plugin, self.name, problem)

    def _check_method(self, name: str) -> Implementation | None:
        static = get_static_method(self.plugin, name)
        function = static.__func__ if isinstance(static, (staticmethod, classmethod)) else static
        options = self._get_options(name, static, function)
        target = (options or {}).get("specname") or POINT_ALIASES.get(name, name)
        target = POINT_ALIASES.get(target, target)
        known = target in self.points or target in self.actions
        is_hook = is_configured(self.plugin)
        if not isinstance(function, (FunctionType, MethodType)):
            # Descriptors such as a property or a `partialmethod` are not callable, but look like a method.
            if known and is_hook and (callable(function) or hasattr(type(function), "__get__")):
                kind = type(function).__name__
                raise self.fail(f"{name}: expected a method, got a {kind}. Define a method {name} that calls it.")
            return None
        if not known:
            self._check_misspelled(name, target, options)
            return None
        return self._build_implementation(name, target, function, dict(options or {})) if is_hook or options else None

    def _get_options(self, name: str, *marked: Any) -> Options | None:
        """Return the options of `@hookimpl` on a function, or on the static method or class method that wraps it."""
        candidates = [self.own_options.get(name), *(getattr(function, IMPL_ATTRIBUTE, None) for function in marked)]
        return next((options for options in candidates if isinstance(options, dict)), None)

    def _check_misspelled(self, name: str, target: str, options: Options | None) -> None:
        """Raise if a name was probably meant to be another point, and keep the names of points declared later."""
        is_hook = is_configured(self.plugin)
        if options is not None and options.get("optionalhook"):
            self.unmatched[name] = None
            return
        if options is not None or (is_hook and name.startswith(_PREFIXES)):
            error = self.fail(self._unknown_point_message(target))
            known = [*self.points, *self.actions, *POINT_ALIASES]
            if self.find_alias(target) or difflib.get_close_matches(target, known, n=1, cutoff=MISSPELLING_CUTOFF):
                raise error
            self.unmatched[name] = error
            return
        if not is_hook:
            return
        for point in difflib.get_close_matches(name, self.points, n=1, cutoff=MISSPELLING_CUTOFF):
            allowed = {"run", *ARGUMENT_ALIASES, *self.points[point].args}
            # A helper with a similar name usually takes other arguments.
            if set(self._get_signature(name, getattr(self.plugin, name)).parameters) <= allowed:
                raise self.fail(
                    f"{name} is similar to the point {point}. Define {self.points[point].signature}, or rename the "
                    "method."
                )

    def _get_signature(self, name: str, call: Callable[..., Any]) -> inspect.Signature:
        try:
            return inspect.signature(call)
        except ValueError:  # a bound method without any parameter
            raise self.fail(f"{name}(): the parameter for the hook is missing. Define {name}(self, ...).") from None

    def _unknown_point_message(self, name: str) -> str:
        if alias := self.find_alias(name):
            frameworks, point = alias
            return f"{name} is a callback of {frameworks}. Define {self.points[point].signature} instead."
        suggestion = suggest_names(name, [*self.points, *self.actions, *POINT_ALIASES])
        return (
            f"unknown point {name}.{suggestion} Declare custom points with bus.declare({name!r}, args=(...)), or "
            "rename the method."
        )

    def _build_implementation(
        self, name: str, target: str, function: Callable[..., Any], options: Options
    ) -> Implementation:
        is_action = target in self.actions
        args = ("run", *(self.actions[target] if is_action else self.points[target].args))
        call, argument_names, accepts_kwargs = bind_method(self.plugin, name), [], False
        name = call.__name__ if name in self.own_options else name
        signature = self._get_signature(name, call)
        for problem in self._find_problems(target, function, options):
            raise self.fail(f"{name}: {problem}")
        for parameter in signature.parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD and not is_action:
                accepts_kwargs = True
                continue
            for problem in _find_parameter_problems(parameter, args, f"{target}({', '.join(args)})", is_action):
                raise self.fail(f"{name}{signature}: {problem}")
            argument_names.append(ARGUMENT_ALIASES.get(parameter.name, parameter.name))
        if len(set(argument_names)) < len(argument_names):
            raise self.fail(f"{name}{signature}: an argument is listed under two names. Remove one of them.")
        return Implementation(
            self.name, self.plugin, name, call, target, options, tuple(argument_names), accepts_kwargs
        )

    def _find_problems(self, target: str, function: Callable[..., Any], options: Options) -> Iterator[str]:
        """Yield what is invalid in a function and its options, except for its parameters."""
        is_action, wrapper = target in self.actions, options.get("wrapper") or options.get("hookwrapper")
        if hasattr(function, DEPRECATIONS_ATTRIBUTE):
            yield "@deprecated has no effect on a listener. Mark the declaration of the point."
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            yield "async functions are not supported. Define it as a synchronous method."
        if options.get("hookwrapper"):
            yield "old-style wrappers are not supported. Use @hookimpl(wrapper=True)."
        if not is_action and wrapper:
            yield (
                f"wrappers are supported by actions ({', '.join(self.actions)}) only. Listen at the before_ and after_ "
                f"points of {target} instead: priorities nest like context managers."
            )
        if not is_action and (options.get("tryfirst") or options.get("trylast")):
            yield "tryfirst and trylast are supported by actions only. Set priority=, before= or after= instead."
        if inspect.isgeneratorfunction(function) and not wrapper:
            hint = "Mark it with @hookimpl(wrapper=True)." if is_action else "Remove the yield."
            yield f"generator functions are not supported. {hint}"
        if wrapper and not inspect.isgeneratorfunction(function):
            yield "marked as a wrapper, but contains no yield. Yield exactly once."
        for option in ("when", "before", "after") if is_action else ():
            if options.get(option) not in (None, ()):
                yield f"{option}= is supported by points only. Remove {option}=."
        counted = not is_action and self.points[target].unit is not None and is_configured(self.plugin)
        if options.get("frequency") is False and not counted:
            yield "frequency=False has no effect, `frequency` never applies to it. Remove it."


def _find_parameter_problems(
    parameter: inspect.Parameter, args: tuple[str, ...], expected: str, is_action: bool
) -> Iterator[str]:
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        star = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
        yield f"{star}{parameter.name} is not supported. Name the arguments, any of {expected}."
    if parameter.kind is parameter.KEYWORD_ONLY:
        yield f"{parameter.name!r} is keyword-only. Remove the * before it."
    if ARGUMENT_ALIASES.get(parameter.name, parameter.name) not in args:
        hint = suggest_names(parameter.name, args)
        yield f"unknown argument {parameter.name!r}.{hint} Use any arguments of {expected}."
    if is_action and parameter.default is not parameter.empty:
        # pluggy treats a parameter with a default as no argument at all, and the default would always be used.
        yield f"actions pass every argument. Remove the default of {parameter.name!r}."


def registration_error(plugin: object, name: str, problem: str) -> RegistrationError:
    """Return the error for an invalid plugin. The message starts with the name and the package of the plugin."""
    return RegistrationError(f"hook {name!r} ({package_label(plugin)}) cannot be registered: {problem}")
