"""Human-readable formats of numbers, durations and results. Independent of the event bus."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rich.cells import cell_len

from hookbus.writers import format_clock_time, format_number

Part = tuple[str, str]
"""Text and rich style of a part of a line; the style "" means none."""

SEPARATOR: Part = ("  ", "")
NONFINITE_STYLE = "bold red"


def format_duration(seconds: float) -> str:
    """Format a duration in seconds as "12.1 ms", "3.42 s", or "0:02:05" from one minute on."""
    if not math.isfinite(seconds):
        return str(seconds)
    if seconds >= 60:
        return format_clock_time(seconds)
    value, unit = (seconds, "s") if seconds >= 1 else (seconds * 1000, "ms")
    return f"{f'{value:#.3g}'.rstrip('.')} {unit}"


def format_count(done: int, total: int | None) -> str:
    """Format a count as "50/450", padded to the width of the total; "50" if the total is None."""
    return str(done) if total is None else f"{done:>{len(str(total))}}/{total}"


def format_compact(count: int) -> str:
    """Format a count with three significant digits, such as "950", "12.3M" or "1B"."""
    for unit, size in (("T", 10**12), ("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= size:
            value = count / size
            return f"{value:.0f}{unit}" if value >= 100 else f"{value:.3g}{unit}"
    return str(count)


def format_values(
    values: Mapping[str, float], *, prefix: str = "", nonfinite: Mapping[str, int] | None = None
) -> list[list[Part]]:
    """Format names and values for one line. Values that are not finite are highlighted, with their count.

    Args:
        values: Values by name. Names under `time/` are durations in seconds; they and names ending in `eta` are placed
            last.
        prefix: Prefix to remove from the names.
        nonfinite: Number of NaN or infinite values in each mean, by name.

    Returns:
        The parts of each value.
    """
    counts = nonfinite or {}
    names = sorted(values, key=is_time)  # a stable sort: each group keeps its order
    return [_format_item(name, values[name], prefix, counts.get(name, 0)) for name in names]


def join_groups(*groups: Sequence[Part], width: int | None = None) -> list[Part]:
    """Join groups of parts with a gap between them; groups without text are skipped.

    Args:
        groups: Parts of the line.
        width: Width in characters; the last groups are omitted if the line is longer. Default: None, for all groups.
    """
    line: list[Part] = []
    length = 0
    for group in groups:
        text = "".join(text for text, _ in group)
        if not text:
            continue
        length += cell_len(text) + (len(SEPARATOR[0]) if line else 0)
        if line and width is not None and length > width:
            break
        line += [SEPARATOR, *group] if line else group
    return line


def is_time(name: str) -> bool:
    """Return whether the name denotes a time in seconds: `time/...` or `eta`."""
    return name.startswith("time/") or name.rpartition("/")[2] == "eta"


def _format_item(name: str, value: float, prefix: str, bad: int) -> list[Part]:
    label = name.removeprefix(prefix) if not is_time(name) else name.removeprefix("time/").removeprefix("train/")
    parts = [(f"{label} ", "dim"), (_format_value(name, value), "" if math.isfinite(value) else NONFINITE_STYLE)]
    return [*parts, (f" ({bad} not finite)", NONFINITE_STYLE)] if bad else parts


def _format_value(name: str, value: float) -> str:
    if name.rpartition("/")[2] == "eta":
        return format_clock_time(value)
    return format_duration(value) if is_time(name) else format_number(value)
