"""Validation of integers."""

from __future__ import annotations

from hookbus.errors import ConfigError

__all__ = ["check_count"]


def check_count(value: object, where: str, *, minimum: int = 1) -> None:
    """Raise unless a value is an integer that is large enough.

    Args:
        value: Value to check. Booleans are invalid.
        where: Name of the value, for the error message.
        least: Smallest valid value.

    Raises:
        ConfigError: If the value is invalid.
    """
    # `bool` is a subclass of `int`.
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise ConfigError([f"{where}: expected an integer >= {minimum}, got {value!r}."])
