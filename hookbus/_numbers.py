"""Whole numbers that a user gives, wherever that is."""

from __future__ import annotations

from hookbus.errors import ConfigError

__all__ = ["check_count"]


def check_count(value: object, where: str, *, least: int = 1) -> None:
    """See that a value is a whole number that is large enough.

    Args:
        value: what was given; a truth value is no number.
        where: what it is called in the message.
        least: the smallest one that will do.

    Raises:
        ConfigError: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError([f"{where}: {value!r} is not a whole number of at least {least}."])
