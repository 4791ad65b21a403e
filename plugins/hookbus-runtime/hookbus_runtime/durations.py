"""Parsing of human-readable durations."""

from __future__ import annotations

import math
import re

__all__ = ["parse_duration"]

SECONDS_PER_UNIT = {"d": 86400, "h": 3600, "m": 60, "s": 1}
UNIT_PATTERN = re.compile(r"(\d+(?:\.\d+)?)\s*([dhms])\s*")
CLOCK_PATTERN = re.compile(r"(?:(\d+)-)?(\d+):(\d\d):(\d\d)")


def parse_duration(duration: str | float) -> float:
    """Return a duration in seconds.

    Args:
        duration: "4h", "1h30m", "2d 12h", "90s"; "04:30:00" or "1-04:30:00" as in SLURM; or seconds.

    Raises:
        ValueError: If the duration has another format or is not positive and finite.
    """
    seconds = _parse_text(duration.strip().lower()) if isinstance(duration, str) else float(duration)
    # A bool is an int: `max_time: true` would be a limit of one second.
    if isinstance(duration, bool) or not (seconds > 0 and math.isfinite(seconds)):
        raise ValueError(f"must be a positive duration, got {duration!r}. Set '4h', '1h30m', '04:30:00', or seconds.")
    return seconds


def _parse_text(text: str) -> float:
    if (clock := CLOCK_PATTERN.fullmatch(text)) is not None:
        days, hours, minutes, seconds = (int(part or 0) for part in clock.groups())
        return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
    parts = UNIT_PATTERN.findall(text)
    # NaN is rejected by the caller. A repeated unit, as in "1h2h", is more likely a typo than a sum.
    if UNIT_PATTERN.sub("", text) or len({unit for _, unit in parts}) < len(parts):
        return math.nan
    return sum(float(number) * SECONDS_PER_UNIT[unit] for number, unit in parts)
