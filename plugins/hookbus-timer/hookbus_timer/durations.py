"""Human-readable durations.

Usable without hookbus.
"""

from __future__ import annotations

__all__ = ["UNKNOWN", "format_duration"]

UNKNOWN = "unknown"
"""Text for an unknown duration or time."""


def format_duration(seconds: float | None) -> str:
    """Format a duration as `4.2 s`, `0:01:02`, `1:02:03`, `2 d 3:04:05`, or `unknown`.

    Args:
        seconds: Duration in seconds, at least 0; None if it is unknown.
    """
    if seconds is None:
        return UNKNOWN
    # Rounded before the comparison, or else 59.96 would be formatted as "60.0 s".
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    clock = f"{hours}:{minutes:02}:{rest:02}"
    return f"{days} d {clock}" if days else clock
