"""Validation of the numbers and units of schedules, and lookup of config fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, get_args

from hookbus._events.points import Unit
from hookbus._utils.arguments import check_count
from hookbus.errors import ConfigError, suggest_names


class FieldConfig(Protocol):
    """Config of a plugin, whose fields schedules refer to by name.

    Attributes:
        model_fields: Fields by name.
    """

    model_fields: ClassVar[Mapping[str, Any]]


def resolve_number(
    config: FieldConfig | None, value: Any, schedule: object, *, minimum: int = 1, optional: bool = False
) -> Any:
    """Return a number of a schedule, or the value of the config field that it names.

    Args:
        config: Config of the hook, None if there is none.
        value: A number, or the name of a field.
        schedule: Schedule, for error messages.
        minimum: Smallest valid number.
        optional: Whether None is valid.

    Raises:
        ConfigError: If the field does not exist or its value is invalid.
    """
    if not isinstance(value, str):
        return value
    if config is None:
        raise ConfigError([f"{schedule!r}: no config contains the field {value!r}. Use a number, or a hookbus.Hook."])
    fields = type(config).model_fields
    if value not in fields:
        suggestion = suggest_names(value, fields)
        raise ConfigError([f"{schedule!r}: {type(config).__name__} has no field {value!r}.{suggestion}"])
    number = getattr(config, value)
    if isinstance(number, str):  # `check_number` would accept it as the name of a field
        raise ConfigError([f"{schedule!r}: invalid field {value!r}, expected a number, got {number!r}."])
    check_number(number, f"{schedule!r}, {value}={number!r}", minimum=minimum, optional=optional)
    return number


def check_number(value: object, where: str, *, minimum: int = 1, optional: bool = False) -> None:
    """Raise unless a value is an integer, the name of a config field, or None if it is optional.

    Args:
        value: Value to check.
        where: Name of the value, for error messages.
        minimum: Smallest valid number.
        optional: Whether None is valid.

    Raises:
        ConfigError: If the value is invalid.
    """
    if isinstance(value, str) or (optional and value is None):
        return
    check_count(value, where, minimum=minimum)


def parse_unit(unit: Unit | None) -> Unit | None:
    """Return a unit; None is the unit of the point.

    Raises:
        ConfigError: If the unit is unknown.
    """
    if unit is not None and unit not in get_args(Unit):
        raise ConfigError([f"unknown unit {unit!r}.{suggest_names(str(unit), get_args(Unit))}"])
    return unit
