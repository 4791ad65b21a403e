"""Settings of the hooks of a run with all defaults, for the configuration that the run writes."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from hookbus._config.hooks import COMMON_KEYS, find_hook_class
from hookbus._utils.imports import import_string
from hookbus._utils.packages import get_entry_point_name, package_label
from hookbus._utils.redaction import hide_declared, redact
from hookbus.hook import Hook, HookConfig
from hookbus.writers.writer import Writer


def describe_hook(hook: object, name: str) -> dict[str, Any] | None:
    """Return the settings from which a hook that no run file contains is built again.

    Args:
        hook: The hook.
        name: Its instance name.

    Returns:
        The settings with their `type`, or None if a run file cannot contain them: the class is local or part of a
        script, or a value is a Python object.
    """
    type_ = _find_type(type(hook))
    if type_ is None or not isinstance(hook, Hook) or not _takes_config(type(hook)):
        return None
    try:
        settings: dict[str, Any] = hook.config.model_dump(mode="json", by_alias=True, exclude_unset=True)
        if not _is_equal(type(hook).Config, settings, hook.config):
            return None
    except (TypeError, ValueError):  # a value that JSON cannot represent
        return None
    named = {hook.config.instance_key: name} if name != _get_default_name(type_) else {}
    return {"type": type_, **named, **settings}


def complete_settings(settings: Mapping[str, Any], hook: object) -> dict[str, Any]:
    """Return the settings of a hook with its defaults: those of its config model, or of its keyword arguments.

    Common keys without a value, secrets, deprecated settings, and defaults that a run file cannot contain are omitted,
    and so are defaults that cannot be combined with the settings or would have another meaning if written out.

    Args:
        settings: Settings with a `type`.
        hook: Hook that was built from them.
    """
    cls = find_hook_class(settings["type"])
    if cls is None:
        return dict(settings)
    if isinstance(hook, Hook) and _takes_config(cls):
        return _complete_config(settings, hook.config)
    if isinstance(hook, Hook) and issubclass(cls, Writer):
        return _complete_config({**settings, **_get_keyword_defaults(cls, settings)}, hook.config, cls)
    return {**settings, **_get_keyword_defaults(cls, settings)}


def _complete_config(settings: Mapping[str, Any], config: HookConfig, cls: type | None = None) -> dict[str, Any]:
    """Return settings with the defaults of a config model. The parameters of a writer class are no settings of it."""
    parameters = inspect.signature(cls).parameters if cls is not None else {}
    own = {key: value for key, value in settings.items() if key != "type" and key not in parameters}
    defaults = dict(_iter_defaults(config, own))
    if not _is_equal(type(config), {**own, **defaults}, config):
        complete: dict[str, Any] = {}
        for key, value in defaults.items():
            if _is_equal(type(config), {**own, **complete, key: value}, config):
                complete[key] = value
        defaults = complete
    return {**settings, **defaults}


def _iter_defaults(config: HookConfig, settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the key and the value of each field that is not set, without secrets."""
    for name, field in type(config).model_fields.items():
        key = _get_key(name, field)
        is_common = name in COMMON_KEYS and getattr(config, name) is None
        if key in settings or name in settings or field.deprecated or is_common:
            continue
        try:
            value = config.model_dump(mode="json", include={name})[name]
            json.dumps(value)
        except (TypeError, ValueError):  # such as a function
            continue
        if redact(hide_declared({key: value}, type(config))) == {key: value}:
            yield key, value


def _get_key(name: str, field: FieldInfo) -> str:
    """Return the key of a field in a run file."""
    return field.validation_alias if isinstance(field.validation_alias, str) else field.alias or name


def _is_equal(model: type[HookConfig], settings: Mapping[str, Any], config: HookConfig) -> bool:
    """Return whether settings are valid, and have the values of a configuration."""
    try:
        built = model.model_validate_json(json.dumps(settings))
    except (ValidationError, TypeError, ValueError):
        return False
    pairs = [(getattr(built, name), getattr(config, name)) for name in model.model_fields]
    # Schedules are compared by their text.
    return all(value == other or repr(value) == repr(other) for value, other in pairs)


def _get_keyword_defaults(cls: type, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults of the parameters of a class that are scalars and not set."""
    parameters = inspect.signature(cls).parameters.values()
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    defaults = {p.name: p.default for p in named if p.name not in settings}
    shown = redact(hide_declared(defaults, cls))
    return {
        name: value
        for name, value in defaults.items()
        if (value is None or isinstance(value, (bool, int, float, str))) and shown[name] == value
    }


def _takes_config(cls: type) -> bool:
    """Return whether the settings of a class are those of its config model, passed as a config or as keywords."""
    if not issubclass(cls, Hook):
        return False
    parameters = inspect.signature(cls).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    return "config" in parameters or (takes_any and cls.Config is not HookConfig)


def _find_type(cls: type) -> str | None:
    """Return the type of a hook class in a run file: its entry point, else an import string; None without one."""
    name = get_entry_point_name(cls)
    package = package_label(cls).partition(" ")[0]
    types = [] if name is None else [name, f"{package}/{name}"]
    entry_point = next((type_ for type_ in types if find_hook_class(type_) is cls), None)
    if entry_point is not None or cls.__module__ == "__main__":
        return entry_point
    text = f"{cls.__module__}:{cls.__qualname__}"
    try:
        return text if "<" not in text and import_string(text) is cls else None
    except ImportError:
        return None


def _get_default_name(type_: str) -> str:
    """Return the instance name of a hook without a name whose type is an entry point; "" for an import string."""
    return "" if ":" in type_ else type_.rpartition("/")[2]
