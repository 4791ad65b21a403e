"""Construction of hooks from settings: `build_hook`, `build_hooks`, `get_default_hooks`, and the registry `HOOKS`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from hookbus import discovery
from hookbus._imports import cause_of, import_path, nearest
from hookbus._published import package_publishing
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
"""Types of the default hooks of a Trainer and of a run file. Only the installed ones are registered."""

PROFILING = ("profiler", "memory_profiler", "iter_timer", "time_tracking")
"""Types of the hooks that `hookbus train --profile` adds."""

COMMON = tuple(HookConfig.model_fields)


class Registry:
    """Registry of hook classes that the user's script defines: `@HOOKS.register("MyHook")`."""

    def __init__(self) -> None:
        self._classes: dict[str, type] = {}

    def register(self, name: str | None = None, *, force: bool = False) -> Callable[[C], C]:
        """Return a decorator that registers a class under a name for run files and `build_hook`.

        Args:
            name: Name of the class. Default: `cls.__name__`.
            force: Replace a class with the same name. Default: False.

        Returns:
            The decorator, which returns the class unchanged.

        Raises:
            RegistrationError: If the name is taken, the object is not a class, or the parentheses are missing.
        """
        if name is not None and not isinstance(name, str):
            raise RegistrationError(
                "HOOKS.register: parentheses are missing. Write @HOOKS.register() or "
                f"@HOOKS.register({name.__name__!r})."
            )

        def add(cls: C) -> C:
            if not isinstance(cls, type):
                raise RegistrationError(f"HOOKS.register: should decorate a class, got {cls!r}.")
            key = name or cls.__name__
            registered = self._classes.get(key)
            # A reloaded module (IPython's %autoreload) registers the same class again.
            if registered is not None and not force and not _same_class(registered, cls):
                raise RegistrationError(
                    f"{key!r} already refers to {registered.__module__}.{registered.__qualname__}. Choose another "
                    "name, or set force=True."
                )
            self._classes[key] = cls
            return cls

        return add

    register_module = register

    def get(self, name: str) -> type | None:
        """Return the class of a name, or None if there is none."""
        return self._classes.get(name)

    def __contains__(self, name: str) -> bool:
        return name in self._classes

    def __iter__(self) -> Any:
        return iter(self._classes)


HOOKS = Registry()
"""Registry of the hook classes that the user's script defines."""


def hook_class(name: str) -> type:
    """Return the hook class that a `type` refers to.

    Args:
        name: Name in `HOOKS`, entry point, class name, `package/name`, or import string `module:Class`.

    Returns:
        The class.

    Raises:
        PluginNotFound, PluginClash, PluginVersionError, PluginImportError: If the lookup fails, see
            `hookbus.discovery`.
        PluginError: If the object is not a hook class.
    """
    registered = HOOKS.get(name)
    if registered is not None:
        return registered
    implementation = _imported(name) if ":" in name else _installed(name)
    if not isinstance(implementation, type):
        raise PluginError(f"{name!r}: should refer to a hook class, got {implementation!r}.")
    if not _is_hook_class(implementation):
        raise PluginError(f"{name!r}: not a hook class. Subclass hookbus.Hook, or mark a method with @hookimpl.")
    return implementation


def build_hook(config: Mapping[str, Any] | object) -> Any:
    """Build a hook from settings. The mapping is not modified.

    Args:
        config: Settings such as `{"type": "ema", "momentum": 0.999}`, or the type alone. A hook instance is returned
            unchanged.

    Returns:
        The hook.

    Raises:
        ConfigError: If the type is missing, or if a setting is invalid.
        PluginError: If the type cannot be found or imported.
    """
    if isinstance(config, str):
        config = {"type": config}
    if not isinstance(config, Mapping):
        if config is None or isinstance(config, (type, int, float, list, tuple)):
            raise ConfigError([f"hook: should be a mapping {{'type': ..., ...}} or a hook instance, got {config!r}."])
        return config
    settings = dict(config)
    type_ = settings.pop("type", None)
    if isinstance(type_, type):
        return construct(type_, settings)
    if not isinstance(type_, str):
        raise ConfigError([f"hook: the key 'type' is missing or not a string, got {dict(config)!r}."])
    hook = construct(hook_class(type_), settings)
    # A class may be published under multiple entry points, so the requested one is the default name.
    if isinstance(hook, Hook) and hook.config.instance_name is None and type_ not in HOOKS:
        hook._name = _entry_named(type_)
    return hook


def build_hooks(configs: Iterable[Mapping[str, Any] | object] | Mapping[str, Any]) -> list[Any]:
    """Build hooks and sort them by priority. Hooks with `enabled: false` are omitted.

    Args:
        configs: Settings with types, or a mapping of instance names to settings.

    Returns:
        The hooks.

    Raises:
        ConfigError, PluginError: See `build_hook`.
    """
    if isinstance(configs, str) or (isinstance(configs, Mapping) and isinstance(configs.get("type"), str)):
        raise ConfigError(
            [
                f"build_hooks: should be a list or a mapping of names to settings, got {configs!r}. Use "
                "build_hook for a single hook."
            ]
        )
    entries = _named(configs) if isinstance(configs, Mapping) else list(configs)
    hooks = [build_hook(config) for config in entries]
    active = [hook for hook in hooks if not isinstance(hook, Hook) or hook.config.enabled]
    return sorted(active, key=_number)


def get_default_hooks() -> list[Hook]:
    """Build the default hooks that are installed: logger, progress, iter_timer, checkpoint, preemption.

    Returns:
        The hooks with their default settings.
    """
    installed = {offer.full_name for offer in discovery.offers() if not offer.blocked}
    # Full names: an installed package of another project must not be able to replace a default hook.
    names = [f"{package_publishing(name)}/{name}" for name in DEFAULT_HOOKS]
    return [build_hook({"type": name}) for name in names if name in installed]


def add_missing(bus: HookBus, names: Iterable[str]) -> None:
    """Register hooks with their default settings, except types that are already registered.

    Args:
        bus: Bus to register the hooks on.
        names: Types of the hooks.

    Raises:
        PluginError: If a hook cannot be found or imported. Nothing is registered in this case.
    """
    registered = {type(hook) for hook in bus.hooks.values()}
    for hook in [build_hook(name) for name in names]:
        if type(hook) not in registered:
            bus.register(hook)


def named_settings(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of one entry of a mapping of hooks. The name is also the type, if none is set.

    Args:
        name: Key in the mapping.
        settings: Value in the mapping.

    Returns:
        The settings with type and instance name.
    """
    type_ = settings.get("type", name)
    return {"type": type_, _instance_key(type_): name, **settings}


def construct(cls: type, settings: Mapping[str, Any]) -> Any:
    """Instantiate a hook class from settings.

    The signature of `__init__` determines whether the settings are passed as a config or as keyword arguments.

    Args:
        cls: Hook class.
        settings: Settings without the type.

    Returns:
        The hook.

    Raises:
        ConfigError: If a setting is unknown or invalid, or if the class cannot be instantiated.
    """
    try:
        parameters = inspect.signature(cls).parameters
        if issubclass(cls, Hook) and "config" in parameters:
            return cls(config=settings)
        return _from_keywords(cls, parameters, settings)
    except HookbusError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError([f"{cls.__name__}: cannot be built: {cause_of(error)}."]) from error


def _from_keywords(cls: type, parameters: Mapping[str, inspect.Parameter], settings: Mapping[str, Any]) -> Any:
    """Instantiate a class whose `__init__` takes its settings as keyword arguments.

    The common keys of hooks are accepted in addition and validated separately.
    """
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
        config = hook.config.model_dump(exclude_unset=True)
        hook._config = validated(hook.Config, {**config, **common}, {}, cls.__name__)
    return hook


def _named(configs: Mapping[str, Any]) -> list[Any]:
    """Convert a mapping of hooks to a list. The key is the name, and the type if none is set; None omits the hook."""
    return [named_settings(name, settings) for name, settings in configs.items() if settings is not None]


def _instance_key(kind: object) -> str:
    """Return the key that contains the instance name of a hook."""
    try:
        cls = hook_class(kind) if isinstance(kind, str) else kind
    except HookbusError:  # an unknown type is reported when the hook is built
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
        raise PluginNotFound(f"hook: {error}") from error


def _is_hook_class(cls: type) -> bool:
    if issubclass(cls, Hook) or hasattr(cls, OPTIONS_ATTRIBUTE):
        return True
    return any(hasattr(inspect.getattr_static(cls, name), IMPL_ATTRIBUTE) for name in dir(cls))


def _entry_named(kind: str) -> str | None:
    """Return the name of the entry point that the user wrote, or None for a class name or an import string."""
    name = kind.strip().rpartition("/")[2]
    return name if any(name == offer.name for offer in discovery.offers()) else None


def _same_class(left: type, right: type) -> bool:
    return (left.__module__, left.__qualname__) == (right.__module__, right.__qualname__)
