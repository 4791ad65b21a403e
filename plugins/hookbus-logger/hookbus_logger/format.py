"""Human-readable formats of numbers, durations and results. Independent of the event bus."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table
from rich.text import Text

Part = tuple[str, str]
"""Text and rich style of a part of a line; the style "" means none."""

SEPARATOR: Part = ("  ", "")
NONFINITE_STYLE = "bold red"


def format_number(value: float) -> str:
    """Format a number with four significant digits.

    Absolute values from 1e4 to 1e9 are rounded to an integer; zero is "0", and values that are not finite are "nan",
    "inf" or "-inf".

    Returns:
        Text such as "0.5000", "12.34", "123456" or "1.235e-05".
    """
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    if abs(value) >= 1e4:
        return f"{value:.0f}" if abs(value) < 1e9 else f"{value:.3e}"
    return f"{value:#.4g}".rstrip(".") if abs(value) >= 1e-3 else f"{value:.3e}"


def format_duration(seconds: float) -> str:
    """Format a duration in seconds as "12.1 ms", "3.42 s", or "0:02:05" from one minute on."""
    if not math.isfinite(seconds):
        return str(seconds)
    if seconds >= 60:
        return format_clock_time(seconds)
    value, unit = (seconds, "s") if seconds >= 1 else (seconds * 1000, "ms")
    return f"{f'{value:#.3g}'.rstrip('.')} {unit}"


def format_clock_time(seconds: float) -> str:
    """Format seconds as hours, minutes and seconds ("0:02:05"); "unknown" if not finite."""
    if not math.isfinite(seconds):
        return "unknown"
    minutes, rest = divmod(max(0, round(seconds)), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def format_elapsed_time(seconds: float) -> str:
    """Format seconds as minutes and seconds ("2:05"), with the hours from one hour on ("1:02:05")."""
    text = format_clock_time(seconds)
    return text.removeprefix("0:").removeprefix("0") if text.startswith("0:") else text


def format_count(done: int, total: int | None) -> str:
    """Format a count as "50/450", padded to the width of the total; "50" if the total is None."""
    return str(done) if total is None else f"{done:>{len(str(total))}}/{total}"


def format_values(
    values: Mapping[str, float], *, prefix: str = "", nonfinite: Mapping[str, int] | None = None
) -> list[Part]:
    """Format names and values as one line. Values that are not finite are highlighted, with their count.

    Args:
        values: Values by name. Names under `time/` are durations in seconds; they and names ending in `eta` are placed
            last.
        prefix: Prefix to remove from the names.
        nonfinite: Number of NaN or infinite values in each mean, by name.

    Returns:
        The parts of the line.
    """
    counts = nonfinite or {}
    names = sorted(values, key=is_time)  # a stable sort: each group keeps its order
    return join_groups(*(_format_item(name, values[name], prefix, counts.get(name, 0)) for name in names))


def join_groups(*groups: Sequence[Part]) -> list[Part]:
    """Join groups of parts with a gap between them; groups without text are skipped."""
    line: list[Part] = []
    for group in groups:
        if any(text for text, _ in group):
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


@dataclass(frozen=True, slots=True)
class Cell:
    """Cell of the epoch table.

    Attributes:
        metric: Name of the metric (row).
        column: Data on which it was measured: `train`, `val`, or `val` and the name of a loader.
        value: Value of the metric.
        best: Best value so far and its epoch, counted from 1; None if no hook tracks it.
        is_best: Whether this value is the best so far.
    """

    metric: str
    column: str
    value: float
    best: tuple[float, int] | None = None
    is_best: bool = False


def build_epoch_table(title: str, cells: Iterable[Cell]) -> Table:
    """Build the table of an epoch: one row per metric, one column per dataset.

    Args:
        title: Header of the first column.
        cells: Results. A `*` marks the best value so far; the last column contains the best value and its epoch.

    Returns:
        A rich table.
    """
    cells = list(cells)
    columns = list(dict.fromkeys(cell.column for cell in cells))
    bests = {cell.metric: cell.best for cell in cells if cell.best is not None}
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    table.add_column(title, no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    if bests:
        table.add_column("best", no_wrap=True)
    for metric in dict.fromkeys(cell.metric for cell in cells):
        texts = {cell.column: _format_cell(cell) for cell in cells if cell.metric == metric}
        row = [texts.get(column, Text("")) for column in columns]
        table.add_row(metric, *row, *([_format_best(bests.get(metric))] if bests else []))
    return table


def _format_cell(cell: Cell) -> Text:
    style = "bold green" if cell.is_best else "" if math.isfinite(cell.value) else NONFINITE_STYLE
    return Text(f"*{format_number(cell.value)}" if cell.is_best else format_number(cell.value), style=style)


def _format_best(best: tuple[float, int] | None) -> Text:
    return Text("") if best is None else Text.assemble(format_number(best[0]), (f"  epoch {best[1]}", "dim"))
