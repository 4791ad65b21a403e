"""Settings of a resumed run: those that its checkpoint restores replace those of the run file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hookbus._utils.values import format_value

if TYPE_CHECKING:
    from hookbus._config.models import Component, RunConfig

MESSAGE = (
    "{}: has no effect in a resumed run, whose checkpoint restores {}, got {}. Set `load_from` instead of `resume` to "
    "train its weights with other settings."
)

NOT_RESTORED = frozenset({"type", "interval", "monitor"})
"""Keys of a section that are no settings of the object whose state a checkpoint contains."""

REBUILT = frozenset({"OneCycleLR"})
"""Types whose settings are partly those of the run file: a longer one keeps its length."""


def merge_restored(config: RunConfig, restored: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the fields of a configuration that a checkpoint changes.

    Args:
        config: Configuration of the run.
        restored: Sections of the `config.yaml` of the run that wrote the checkpoint. Its content is not trusted.

    Returns:
        The changed fields, and a message for each setting of the run file that has no effect.
    """
    fields: dict[str, Any] = {}
    messages: list[str] = []
    seed = restored.get("seed")
    if type(seed) is int and seed != config.seed:
        fields["seed"] = seed
        if "seed" in config.model_fields_set:
            messages.append(MESSAGE.format("seed", seed, config.seed))
    for name in ("optimizer", "scheduler"):
        own, recorded = getattr(config, name), restored.get(name)
        if own is None or not isinstance(recorded, Mapping) or recorded.get("type") != own.type or own.type in REBUILT:
            continue  # the state of another type is refused, or loaded with its settings unknown
        values = _select(own, recorded)
        if values != own.settings:
            fields[name] = type(own).model_validate({**{key: getattr(own, key) for key in _get_fields(own)}, **values})
            if name in config.model_fields_set:
                messages += [
                    MESSAGE.format(f"{name}.{key}", _describe(values, key), format_value(value))
                    for key, value in own.settings.items()
                    if key not in values or values[key] != value
                ]
    return fields, messages


def _describe(values: Mapping[str, Any], key: str) -> str:
    return format_value(values[key]) if key in values else "the default"


def _get_fields(section: Component) -> list[str]:
    return [*type(section).model_fields]


def _select(own: Component, recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recorded settings; a reference to the environment, or a redacted value, is that of the run file."""
    values = {str(key): value for key, value in recorded.items() if key not in NOT_RESTORED}
    is_unknown = {key for key, value in values.items() if isinstance(value, str) and ("${" in value or "***" in value)}
    known = {key: value for key, value in values.items() if key not in is_unknown}
    return {**known, **{key: own.settings[key] for key in is_unknown if key in own.settings}}
