"""The numbers and units in a schedule: checked, and looked up where a field of a config is named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

from hookbus._numbers import check_count
from hookbus.errors import ConfigError, did_you_mean
from hookbus.lifecycle import Unit

if TYPE_CHECKING:
    from hookbus.hook import HookConfig
    from hookbus.when import Schedule

__all__ = ["check_number", "checked_unit", "field_value"]


def field_value(
    config: HookConfig | None, value: Any, schedule: Schedule, *, least: int = 1, optional: bool = False
) -> Any:
    """A number of a schedule: itself, or the value of the config's field that it names.

    Args:
        config: the config of the hook; None where there is none.
        value: a number, or the name of a field.
        schedule: for the message.
        least: the least number that will do.
        optional: whether None will do.

    Raises:
        ConfigError: there is no such field, or its value will not do.
    """
    if not isinstance(value, str):
        return value
    if config is None:
        raise ConfigError([f"{schedule!r} names the field {value!r} of a config, and only a hookbus.Hook has one."])
    fields = type(config).model_fields
    if value not in fields:
        near = did_you_mean(value, fields)
        raise ConfigError(
            [f"{schedule!r} names the field {value!r}, which {type(config).__name__} does not have.{near}"]
        )
    found = getattr(config, value)
    if isinstance(found, str):
        raise ConfigError([f"{schedule!r}: the field {value!r} is {found!r}, which is not a number."])
    check_number(found, f"{schedule!r}, where {value} is {found!r}", least=least, optional=optional)
    return found


def check_number(value: object, where: str, *, least: int = 1, optional: bool = False) -> None:
    """See that a value is a count, the name of a config field that holds one, or, where it is optional, None.

    Args:
        value: what was given.
        where: whose it is, for the message.
        least: the least number that will do.
        optional: whether None will do.

    Raises:
        ConfigError: it is neither.
    """
    if isinstance(value, str) or (optional and value is None):
        return
    check_count(value, where, least=least)


def checked_unit(unit: Unit | None) -> Unit | None:
    """A unit, or None for the point's own.

    Raises:
        ConfigError: there is no such unit.
    """
    if unit is not None and unit not in get_args(Unit):
        raise ConfigError([f"{unit!r} is not a unit.{did_you_mean(str(unit), get_args(Unit))}"])
    return unit
