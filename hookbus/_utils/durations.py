"""Durations in settings: as text or as a number of seconds."""

from __future__ import annotations

import math
import re
from typing import Annotated

from pydantic import AfterValidator

SECONDS_PER_UNIT = {"d": 86400, "h": 3600, "min": 60, "m": 60, "s": 1}
NUMBER_PATTERN = re.compile(r"\d+(?:\.\d+)?")
UNIT_PATTERN = re.compile(rf"({NUMBER_PATTERN.pattern})\s*(min|[dhms])\s*")
CLOCK_PATTERN = re.compile(r"(?:(\d+)-)?(\d+):(\d\d):(\d\d)")


def parse_duration(duration: str | float) -> float:
    """Return a duration in seconds.

    Args:
        duration: "4h", "30min", "1h30m", "2d 12h"; "04:30:00" or "1-04:30:00" as in SLURM; or seconds: 90, "90", "90s".

    Raises:
        ValueError: If the duration has another format or is not positive and finite.
    """
    try:
        seconds = _parse_text(duration.strip().lower()) if isinstance(duration, str) else float(duration)
    except OverflowError:  # an integer of hundreds of digits
        seconds = math.inf
    # A bool is an int: `true` would be a duration of one second.
    if isinstance(duration, bool) or not (seconds > 0 and math.isfinite(seconds)):
        raise ValueError(
            f"must be a positive duration, got {duration!r}. Set '30min', '4h', '1h30m', '04:30:00', or seconds."
        )
    return seconds


def _parse_text(text: str) -> float:
    if (clock := CLOCK_PATTERN.fullmatch(text)) is not None:
        days, hours, minutes, seconds = (int(part or 0) for part in clock.groups())
        return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
    if NUMBER_PATTERN.fullmatch(text):
        return float(text)
    parts = [(float(number), SECONDS_PER_UNIT[unit]) for number, unit in UNIT_PATTERN.findall(text)]
    # NaN is rejected by the caller. A repeated unit, as in "1h2h", is more likely a typo than a sum.
    if UNIT_PATTERN.sub("", text) or len({unit for _, unit in parts}) < len(parts):
        return math.nan
    return sum(number * unit for number, unit in parts)


def _check_duration(value: str | float) -> str | float:
    parse_duration(value)
    return value


Duration = Annotated[str | int | float, AfterValidator(_check_duration)]
"""Type of a setting that `parse_duration` accepts. The setting keeps the value as it is written."""
