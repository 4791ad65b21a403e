"""Numbers of schedules: counts, and shares of the run."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from typing import TypeGuard

from hookbus._utils.arguments import check_count
from hookbus.errors import ConfigError

Number = int | float
"""A count, or a float from 0 to 1: a share of the run."""
MAX_DENOMINATOR = 1_000_000
"""Shares are rounded to fractions with at most this denominator, so that 0.1 is a tenth and 1 / 3 a third."""


def is_share(number: object) -> TypeGuard[float]:
    """Return whether a number is a share of the run."""
    return isinstance(number, float)


def check_number(number: object, where: str, *, minimum: int) -> None:
    """Raise unless a value is a count that is large enough, or a share of the run.

    Args:
        number: Value to check.
        where: Name of the value, for the error message.
        minimum: Smallest valid count. A share of 0 is valid if the count 0 is.

    Raises:
        ConfigError: If the value is invalid.
    """
    if not is_share(number):
        check_count(number, where, minimum=minimum)
    elif not (0 <= number <= 1) or (minimum and not _to_fraction(number)):
        least = "from" if minimum == 0 else "greater than"
        raise ConfigError(
            [f"{where}: expected an integer >= {minimum}, or a share of the run {least} 0 to 1, got {number!r}."]
        )


def to_position(number: Number | str, limit: int | None) -> int | Fraction:
    """Return a count, or the exact position of a share in a run.

    Args:
        number: Count or share.
        limit: Last number of the run; required for a share.
    """
    if is_share(number):
        assert limit is not None
        return _to_fraction(number) * limit
    return int(number)


@lru_cache(maxsize=256)
def _to_fraction(share: float) -> Fraction:
    return Fraction(share).limit_denominator(MAX_DENOMINATOR)
