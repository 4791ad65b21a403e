"""Construction of hooks from settings: `build_hook`, `build_hooks`, `get_default_hooks`, and the registry `HOOKS`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from hookbus import discovery
from hookbus._events.checks import OPTIONS_ATTRIBUTE
from hookbus._events.markers import IMPL_ATTRIBUTE
from hookbus._utils.arguments import split_settings
from hookbus._utils.imports import describe_error, import_string, suggest_if_close
from hookbus._utils.known_keys import explain_unknown_key
from hookbus._utils.packages import cached_lookups
from hookbus._utils.plugin_entries import get_publishing_package
from hookbus._utils.redaction import hide_declared, hide_in_message, redact
from hookbus._utils.settings import warn_of_settings
from hookbus._utils.values import format_value
from hookbus.errors import (
    ConfigError,
    HookbusError,
    HookWarning,
    PluginError,
    PluginNotFoundError,
    RegistrationError,
    suggest_names,
)
from hookbus.hook import Hook, HookConfig, Priority, validate_config
from hookbus.writers.writer import Writer

if TYPE_CHECKING:
    from hookbus.bus import HookBus


C = TypeVar("C", bound=type)

DEFAULT_HOOKS = ("logger", "progress", "iter_timer", "checkpoint", "preemption")
"""Types of the default hooks of a Trainer and of a run file. Only the installed ones are registered."""

PROFILING_HOOKS = ("profiler", "memory_profiler", "iter_timer", "time_tracking")
"""Types of the hooks that `hookbus train --profile` adds."""

COMMON_KEYS = tuple(HookConfig.model_fields)


class Registry(dict[str, type]):
    """Registry of hook classes that the user's script defines: `@HOOKS.register("MyHook")`."""

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
            registered = _get_full_name(self.get(key, cls))
            # A reloaded module (IPython's %autoreload) registers the same class again.
            if registered != _get_full_name(cls) and not force:
                raise RegistrationError(
                    f"{key!r} already refers to {registered}. Choose another name, or set force=True."
                )
            self[key] = cls
            return cls

        return add

    register_module = register


HOOKS = HOOK_REGISTRY = HookRegistry = Registry()
"""Registry of the hook classes that the user's script defines. `HOOK_REGISTRY` and `HookRegistry` are aliases."""


def get_hook_class(name: str) -> type:
    """Return the hook class that a `type` refers to.

    Args:
        name: Name in `HOOKS`, entry point, class name, `package/name`, or import string `module:Class`.

    Returns:
        The class.

    Raises:
        PluginNotFoundError, PluginConflictError, PluginVersionError, PluginImportError: If the lookup fails, see
            `hookbus.discovery`.
        PluginError: If the object is not a hook class.
    """
    if name in HOOKS:
        return HOOKS[name]
    try:
        implementation = import_string(name) if ":" in name else discovery.load_entry(discovery.find_entry(name))
    except ImportError as error:
        raise PluginNotFoundError(f"hook: {error}") from error
    except PluginNotFoundError as error:
        raise PluginNotFoundError(f"{error}{suggest_if_close(name, HOOKS)}") from None
    if problem := find_class_problem(implementation):
        raise PluginError(f"{format_value(name)}: {problem}")
    assert isinstance(implementation, type)
    return implementation


def find_class_problem(implementation: object) -> str:
    """Return why an object is no hook class from which hooks can be built, or ""."""
    if not isinstance(implementation, type):
        return f"should refer to a hook class, got {implementation!r}."
    if not _is_hook_class(implementation):
        return f"not a hook class. {_advise(implementation)}"
    if inspect.isabstract(implementation):
        missing = ", ".join(sorted(getattr(implementation, "__abstractmethods__")))  # noqa: B009
        return f"an abstract class, without {missing}. Refer to a subclass that implements all methods."
    return ""


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
            raise ConfigError(
                f"hook: should be a mapping {{'type': ..., ...}} or a hook instance, got {_show(config)}."
            )
        return config
    settings = dict(config)
    type_ = settings.pop("type", None)
    if isinstance(type_, type):
        return _instantiate(type_, settings)
    if not isinstance(type_, str):
        raise ConfigError(f"hook: the key 'type' is missing or not a string, got {_show(dict(config))}.")
    hook = _instantiate(get_hook_class(type_), settings)
    # A class may be published under multiple entry points, so the requested one is the default name.
    if isinstance(hook, Hook) and hook.config.instance_name is None and hook._name is None and type_ not in HOOKS:
        name = type_.strip().rpartition("/")[2]
        hook._name = name if any(name == plugin.name for plugin in discovery.list_entries()) else None
    return hook


@cached_lookups()
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
            f"build_hooks: should be a list or a mapping of names to settings, got {_show(configs)}. Use "
            "build_hook for a single hook."
        )
    if isinstance(configs, Mapping):
        configs = [add_instance_name(name, settings) for name, settings in configs.items() if settings is not None]
    hooks = [build_hook(config) for config in configs]
    active = [hook for hook in hooks if not isinstance(hook, Hook) or hook.config.enabled]
    return sorted(active, key=_get_priority)


@cached_lookups()
def get_default_hooks() -> list[Hook]:
    """Build the default hooks that are installed: logger, progress, iter_timer, checkpoint, preemption.

    Returns:
        The hooks with their default settings.
    """
    installed = {plugin.full_name for plugin in discovery.list_entries() if not plugin.blocked}
    # Full names: an installed package of another project must not be able to replace a default hook.
    names = [f"{get_publishing_package(name)}/{name}" for name in DEFAULT_HOOKS]
    return [build_hook({"type": name}) for name in names if name in installed]


@cached_lookups()
def register_defaults(bus: HookBus, names: Iterable[str]) -> None:
    """Register hooks with their default settings, except types that are already registered.

    Raises:
        PluginError: If a hook cannot be found or imported. Nothing is registered in this case.
    """
    registered = {type(hook) for hook in bus.hooks.values()}
    for hook in [build_hook(name) for name in names]:
        if type(hook) not in registered:
            bus.register(hook)


def add_instance_name(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of one entry of a mapping of hooks. The name is also the type, if none is set."""
    type_ = settings.get("type", name)
    cls = type_ if isinstance(type_, type) else find_hook_class(type_)
    model = cls.Config if cls is not None and issubclass(cls, Hook) else HookConfig
    return {"type": type_, model.instance_key: name, **settings}


def find_hook_class(type_: object) -> type | None:
    """Return the class of a hook, or None if there is none, which is reported when the hook is built."""
    try:
        return get_hook_class(type_) if isinstance(type_, str) else None
    except HookbusError:
        return None


def hide_declared_settings(settings: Mapping[str, Any]) -> Any:
    """Return settings with a type in which the values that the hook class declares as secrets are redacted."""
    cls = find_hook_class(settings.get("type"))
    # A hook declares its settings in its config model, in the parameters of `__init__`, or in both.
    hidden = hide_declared(settings, cls.Config) if cls is not None and issubclass(cls, Hook) else settings
    return hide_declared(hidden, cls)


def _instantiate(cls: type, settings: Mapping[str, Any]) -> Any:
    """Instantiate a hook class from settings.

    The signature of `__init__` determines whether the settings are passed as a config or as keyword arguments.
    """
    try:
        if issubclass(cls, Writer):
            from hookbus.writers.custom import CustomWriterHook  # imports torch

            return CustomWriterHook(cls, settings)
        parameters = inspect.signature(cls).parameters
        if issubclass(cls, Hook) and "config" in parameters:
            return cls(config=settings)
        return _from_keywords(cls, parameters, settings)
    except (HookbusError, HookWarning):  # a warning, if warnings are errors
        raise
    except (Exception, SystemExit) as error:
        hidden = redact(hide_declared(hide_declared(settings, getattr(cls, "Config", None)), cls))
        cause = hide_in_message(describe_error(error), settings, hidden)
        raise ConfigError(f"{cls.__name__}: cannot be built: {cause}.") from error


def _from_keywords(cls: type, parameters: Mapping[str, inspect.Parameter], settings: Mapping[str, Any]) -> Any:
    """Instantiate a class whose `__init__` takes its settings as keyword arguments.

    The common keys of hooks are accepted in addition and validated separately.
    """
    common_keys = COMMON_KEYS if issubclass(cls, Hook) else ()
    own, common, unknown = split_settings(settings, parameters, common_keys)
    if unknown:
        known = [*parameters, *common_keys]
        # A plugin that is no Hook has no common keys.
        hints = {key: (suggest_names if key in COMMON_KEYS else explain_unknown_key)(key, known) for key in unknown}
        raise ConfigError(f"{cls.__name__}: {key}: unknown key.{hint}" for key, hint in hints.items())
    hook = cls(**own)
    if common:
        config = hook.config.model_dump(exclude_unset=True)
        hook._config = validate_config(hook.Config, {**config, **common}, {}, cls.__name__)
        warn_of_settings(hook, hook.config, common)
    return hook


def _show(value: object) -> str:
    """Return an invalid value for a message, without secrets."""
    return format_value(redact(value) if isinstance(value, (Mapping, list, tuple, str)) else value)


def _get_priority(hook: object) -> int:
    if not isinstance(hook, Hook):
        return int(Priority.NORMAL)
    return hook.config.priority if hook.config.priority is not None else int(hook.priority)


def _is_hook_class(cls: type) -> bool:
    if issubclass(cls, (Hook, Writer)) or hasattr(cls, OPTIONS_ATTRIBUTE):
        return True
    return any(hasattr(inspect.getattr_static(cls, name), IMPL_ATTRIBUTE) for name in dir(cls))


def _advise(cls: type) -> str:
    """Return how to change a class so that a run file can refer to it."""
    if hasattr(cls, "write_scalar"):
        return "A writer subclasses hookbus.Writer, or has a hook that subclasses hookbus.WriterHook."
    return "Subclass hookbus.Hook, or mark a method with @hookimpl."


def _get_full_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def merge_defaults(hooks: Iterable[object], defaults: Iterable[object]) -> list[object]:
    """Return the default hooks that no user hook replaces, then the user hooks.

    Args:
        hooks: User hooks. A hook that is an instance of the type of a default hook replaces it, even if disabled.
        defaults: Hooks of `get_default_hooks()`.

    Returns:
        The merged list. The default hooks come first.
    """
    own_hooks = list(hooks)
    kept = [hook for hook in defaults if not any(isinstance(own_hook, type(hook)) for own_hook in own_hooks)]
    # Hooks of equal priority run in the order of registration, so the default hooks precede the user hooks.
    return [*kept, *own_hooks]
