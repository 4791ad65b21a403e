"""From settings to hooks: `build_hook`, `build_hooks`, `get_default_hooks`, and the registry `HOOKS`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from hookbus import discovery
from hookbus._imports import cause_of, import_path, nearest
from hookbus.dispatch.checks import OPTIONS_ATTRIBUTE
from hookbus.errors import ConfigError, HookbusError, PluginError, PluginNotFound, RegistrationError, did_you_mean
from hookbus.hook import Hook, HookConfig, Priority, validated
from hookbus.markers import IMPL_ATTRIBUTE

if TYPE_CHECKING:
    from hookbus.bus import HookBus

__all__ = [
    "DEFAULT_HOOKS",
    "HOOKS",
    "PROFILING",
    "Registry",
    "add_missing",
    "build_hook",
    "build_hooks",
    "get_default_hooks",
    "hook_class",
    "named_settings",
]

C = TypeVar("C", bound=type)

DEFAULT_HOOKS = ("logger", "progress", "iter_timer", "checkpoint", "preemption")
"""The hooks that a Trainer and a run file start from, as far as they are installed."""

PROFILING = ("profiler", "memory_profiler", "iter_timer", "time_tracking")
"""The hooks that `hookbus train --profile` adds."""

COMMON = tuple(HookConfig.model_fields)


class Registry:
    """Names for hook classes of one's own script: `@HOOKS.register("MyHook")`."""

    def __init__(self) -> None:
        self._classes: dict[str, type] = {}

    def register(self, name: str | None = None, *, force: bool = False) -> Callable[[C], C]:
        """Give a class a name that run files and `build_hook` understand.

        Args:
            name: the name; default the class's.
            force: replace a class of the same name.

        Raises:
            RegistrationError: the name is taken, what is decorated is not a class, or the parentheses are missing.
        """
        if name is not None and not isinstance(name, str):
            raise RegistrationError(
                f"HOOKS.register is written with parentheses: @HOOKS.register() or @HOOKS.register({name.__name__!r})."
            )

        def add(cls: C) -> C:
            if not isinstance(cls, type):
                raise RegistrationError(f"HOOKS.register is for classes, not for {cls!r}.")
            key = name or cls.__name__
            there = self._classes.get(key)
            if there is not None and not force and not _same_class(there, cls):
                raise RegistrationError(
                    f"{key!r} is the name of {there.__module__}.{there.__qualname__} already: choose another name, or "
                    "say force=True."
                )
            self._classes[key] = cls
            return cls

        return add

    register_module = register

    def get(self, name: str) -> type | None:
        """The class of this name, None where there is none."""
        return self._classes.get(name)

    def __contains__(self, name: str) -> bool:
        return name in self._classes

    def __iter__(self) -> Any:
        return iter(self._classes)


HOOKS = Registry()
"""The hook classes of the user's own script."""


def hook_class(name: str) -> type:
    """The hook class that a `type` names.

    Args:
        name: a name in `HOOKS`, an entry point, a class name, `package/name`, or a path `module:Class`.

    Raises:
        PluginNotFound, PluginClash, PluginVersionError, PluginImportError: see `hookbus.discovery`.
        PluginError: it names something that is no hook class.
    """
    own = HOOKS.get(name)
    if own is not None:
        return own
    found = _imported(name) if ":" in name else _installed(name)
    if not isinstance(found, type):
        raise PluginError(f"{name!r} is {found!r}; a hook is named by its class.")
    if not _is_hook_class(found):
        raise PluginError(
            f"{name!r} is no hook class: it neither subclasses hookbus.Hook nor has a method marked by @hookimpl."
        )
    return found


def build_hook(config: Mapping[str, Any] | object) -> Any:
    """Build one hook from settings. The mapping is not changed.

    Args:
        config: `{"type": "ema", "momentum": 0.999}`; a hook that is built already is returned as it is.

    Raises:
        ConfigError: there is no type, or a setting does not hold.
        PluginError: the type cannot be found or imported.
    """
    if isinstance(config, str):
        config = {"type": config}
    if not isinstance(config, Mapping):
        if config is None or isinstance(config, (type, int, float, list, tuple)):
            raise ConfigError([f"A hook is given as {{'type': ..., ...}} or built already; {config!r} is neither."])
        return config
    settings = dict(config)
    kind = settings.pop("type", None)
    if isinstance(kind, type):
        return construct(kind, settings)
    if not isinstance(kind, str):
        raise ConfigError([f"A hook is given as {{'type': ..., ...}}; the type is missing in {dict(config)!r}."])
    hook = construct(hook_class(kind), settings)
    if isinstance(hook, Hook) and hook.config.instance_name is None and kind not in HOOKS:
        hook._name = _entry_named(kind)
    return hook


def build_hooks(configs: Iterable[Mapping[str, Any] | object] | Mapping[str, Any]) -> list[Any]:
    """Build hooks, in the order of their priorities; those with `enabled: false` are left out.

    Args:
        configs: settings with types, or a mapping of instance name to settings.

    Raises:
        ConfigError, PluginError: as `build_hook`.
    """
    if isinstance(configs, str) or (isinstance(configs, Mapping) and isinstance(configs.get("type"), str)):
        raise ConfigError([f"build_hooks takes a list; for one hook say build_hook({configs!r})."])
    listed = _named(configs) if isinstance(configs, Mapping) else list(configs)
    hooks = [build_hook(config) for config in listed]
    active = [hook for hook in hooks if not isinstance(hook, Hook) or hook.config.enabled]
    return sorted(active, key=_number)


def get_default_hooks() -> list[Hook]:
    """The hooks that a Trainer starts from: logger, progress, timer, checkpoint, preemption, as far as installed.

    Only the hookbus project's own: no other package gets into a run by being installed.
    """
    there = {offer.full_name for offer in discovery.offers() if not offer.blocked}
    own = [f"{discovery.package_publishing(name)}/{name}" for name in DEFAULT_HOOKS]
    return [build_hook({"type": name}) for name in own if name in there]


def add_missing(bus: HookBus, names: Iterable[str]) -> None:
    """Register hooks with their default settings, each unless one of its class is there already.

    Args:
        bus: where they are registered.
        names: their types.

    Raises:
        PluginError: one of them cannot be found or imported; then none is registered.
    """
    there = {type(hook) for hook in bus.hooks.values()}
    for hook in [build_hook(name) for name in names]:
        if type(hook) not in there:
            bus.register(hook)


def named_settings(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What a mapping of instance name to settings says of one hook: the name is its type, where none is given.

    Args:
        name: the key in the mapping.
        settings: its value.
    """
    kind = settings.get("type", name)
    return {"type": kind, _instance_key(kind): name, **settings}


def construct(cls: type, settings: Mapping[str, Any]) -> Any:
    """An instance of a hook class from settings: its own `__init__` decides whether as keywords or as a config.

    Raises:
        ConfigError: a setting is unknown or has a wrong value, or the class cannot be built.
    """
    try:
        parameters = inspect.signature(cls).parameters
        if issubclass(cls, Hook) and "config" in parameters:
            return cls(config=settings)
        return _from_keywords(cls, parameters, settings)
    except HookbusError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError([f"{cls.__name__} cannot be built: {cause_of(error)}."]) from error


def _from_keywords(cls: type, parameters: Mapping[str, inspect.Parameter], settings: Mapping[str, Any]) -> Any:
    """An instance of a class whose `__init__` names its settings; a hook gets the common keys besides."""
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    common_keys = COMMON if issubclass(cls, Hook) else ()
    common = {key: value for key, value in settings.items() if key in common_keys and key not in parameters}
    own = {key: value for key, value in settings.items() if key not in common}
    unknown = [key for key in own if key not in parameters] if not takes_any else []
    if unknown:
        known = [*parameters, *common_keys]
        raise ConfigError(f"{cls.__name__}: {key}: unknown key.{did_you_mean(key, known)}" for key in unknown)
    hook = cls(**own)
    if common:
        given = hook.config.model_dump(exclude_unset=True)
        hook._config = validated(hook.Config, {**given, **common}, {}, cls.__name__)
    return hook


def _named(configs: Mapping[str, Any]) -> list[Any]:
    """`{"ema": {...}}` as a list: the key is the name, and the type where none is given; None leaves it out."""
    return [named_settings(name, each) for name, each in configs.items() if each is not None]


def _instance_key(kind: object) -> str:
    """The key that holds the instance name of a hook; of what cannot be found or imported something else is told."""
    try:
        cls = hook_class(kind) if isinstance(kind, str) else kind
    except HookbusError:
        cls = Hook
    return cls.Config.instance_key if isinstance(cls, type) and issubclass(cls, Hook) else HookConfig.instance_key


def _number(hook: object) -> int:
    if not isinstance(hook, Hook):
        return int(Priority.NORMAL)
    return hook.config.priority if hook.config.priority is not None else int(hook.priority)


def _installed(name: str) -> Any:
    try:
        return discovery.load(discovery.find(name))
    except PluginNotFound as error:
        raise PluginNotFound(f"{error}{nearest(name, HOOKS)}") from None


def _imported(path: str) -> Any:
    try:
        return import_path(path)
    except ImportError as error:
        raise PluginNotFound(f"The hook {error}") from error


def _is_hook_class(cls: type) -> bool:
    if issubclass(cls, Hook) or hasattr(cls, OPTIONS_ATTRIBUTE):
        return True
    return any(hasattr(inspect.getattr_static(cls, name), IMPL_ATTRIBUTE) for name in dir(cls))


def _entry_named(kind: str) -> str | None:
    """The entry point that the user wrote, which names the hook: a class may have several; None for a class or path."""
    name = kind.strip().rpartition("/")[2]
    return name if any(name == offer.name for offer in discovery.offers()) else None


def _same_class(left: type, right: type) -> bool:
    return (left.__module__, left.__qualname__) == (right.__module__, right.__qualname__)
