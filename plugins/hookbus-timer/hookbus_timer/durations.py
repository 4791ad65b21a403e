"""Lengths of time, for people to read.

Usable without hookbus.
"""

from __future__ import annotations

__all__ = ["UNKNOWN", "format_duration"]

UNKNOWN = "unknown"
"""What is shown where a time cannot be told."""


def format_duration(seconds: float | None) -> str:
    """A length of time: `4.2 s`, `0:01:02`, `1:02:03`, `2 d 3:04:05`, or `unknown`.

    Args:
        seconds: at least 0; None where it is not known.
    """
    if seconds is None:
        return UNKNOWN
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    clock = f"{hours}:{minutes:02}:{rest:02}"
    return f"{days} d {clock}" if days else clock
