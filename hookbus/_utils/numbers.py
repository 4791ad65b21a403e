"""Human-readable formats of numbers and durations."""

from __future__ import annotations

import math


def format_number(value: float) -> str:
    """Format a number with four significant digits.

    Absolute values from 1e4 to 1e9 are rounded to an integer; zero is "0", and values that are not finite are "nan",
    "inf" or "-inf".

    Args:
        value: Number.

    Returns:
        Text such as "0.5000", "12.34", "123456" or "1.235e-05".
    """
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    if abs(value) >= 1e4:
        return f"{value:.0f}" if abs(value) < 1e9 else f"{value:.3e}"
    return f"{value:#.4g}".rstrip(".") if abs(value) >= 1e-3 else f"{value:.3e}"


def format_quantity(number: int, unit: str) -> str:
    """Format a number of things, such as "1 epoch" or "1,234 epochs".

    Args:
        number: Number of things.
        unit: Name of one thing.
    """
    return f"{number:,} {unit}{'' if number == 1 else 's'}"


def format_clock_time(seconds: float) -> str:
    """Format seconds as hours, minutes and seconds ("0:02:05"); "unknown" if not finite.

    Args:
        seconds: Duration in seconds; a negative one is shown as 0.
    """
    if not math.isfinite(seconds):
        return "unknown"
    minutes, rest = divmod(max(0, round(seconds)), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def format_elapsed_time(seconds: float) -> str:
    """Format seconds as minutes and seconds ("2:05"), with the hours from one hour on ("1:02:05").

    Args:
        seconds: Duration in seconds, see `format_clock_time`.
    """
    text = format_clock_time(seconds)
    return text.removeprefix("0:").removeprefix("0") if text.startswith("0:") else text


def format_ns(nanoseconds: float) -> str:
    """Format a short time with three significant digits, such as "1.23 µs", "45.6 ms" or "7.89 s"."""
    for unit, size in (("s", 1e9), ("ms", 1e6)):
        if nanoseconds >= size:
            return f"{_format_three_digits(nanoseconds / size)} {unit}"
    return f"{_format_three_digits(nanoseconds / 1e3)} µs"


def _format_three_digits(value: float) -> str:
    decimals = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:.{decimals}f}"
