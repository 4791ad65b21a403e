"""Validation of numbers of batches: an integer is a number, a float a fraction."""

from __future__ import annotations

import math

from hookbus._utils.values import format_value

EXPECTED = "should be an int, the number of batches, or a float in [0, 1], the fraction of all batches"


def find_limit_problem(value: object) -> str:
    """Return why a value is no limit of a number of batches, with the fix; "" if it is one.

    Args:
        value: A non-negative integer, or a float from 0 to 1. Booleans are invalid.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        fix = "" if value >= 0 else "Set 0 for no batch, or 1.0 for all of them."
    elif isinstance(value, float):
        fix = "" if 0 <= value <= 1 else _explain_float(value)
    else:
        fix = "Set 1 for one batch, or 1.0 for all of them."
    return f"{EXPECTED}, got {format_value(value)}. {fix}" if fix else ""


def _explain_float(value: float) -> str:
    if value > 1 and math.isfinite(value):
        return f"Set {math.floor(value)}, without a decimal point, for a number of batches."
    return "Set 0 for no batch, or 1.0 for all of them."


def find_dev_run_problem(value: object) -> str:
    """Return why a value of `fast_dev_run` is invalid, with the fix; "" if it is valid.

    Args:
        value: A bool, or a non-negative integer.
    """
    if isinstance(value, int) and value >= 0:
        return ""
    return (
        f"should be True, False or an int, the number of batches, got {format_value(value)}. Set True for one batch of "
        "each loader."
    )


def count_fraction(fraction: float, total: int) -> int:
    """Return the number of batches of a fraction, rounded down.

    Args:
        fraction: From 0 to 1.
        total: Number of all batches.
    """
    # 0.29 * 100 is 28.999999999999996.
    return math.floor(round(fraction * total, 6))
