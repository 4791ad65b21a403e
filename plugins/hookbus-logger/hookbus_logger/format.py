"""How numbers, durations and results look to people. Plain functions; knows nothing of trainings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table
from rich.text import Text

__all__ = [
    "Cell", "Part", "clock_time", "count", "duration", "epoch_table", "is_time", "joined", "number", "values_line",
]  # fmt: skip

Part = tuple[str, str]
"""A piece of a line, and its style, "" for none."""

SEPARATOR: Part = ("  ", "")
BAD = "bold red"


def number(value: float) -> str:
    """Four significant digits: 0.5000, 12.34, 1.235e-05; whole numbers beyond that in full."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    if abs(value) >= 1e4:
        return f"{value:.0f}" if abs(value) < 1e9 else f"{value:.3e}"
    return f"{value:#.4g}".rstrip(".") if abs(value) >= 1e-3 else f"{value:.3e}"


def duration(seconds: float) -> str:
    """A span of time: 0.350 ms, 12.1 ms, 3.42 s, 0:02:05."""
    if not math.isfinite(seconds):
        return str(seconds)
    if seconds >= 60:
        return clock_time(seconds)
    value, unit = (seconds, "s") if seconds >= 1 else (seconds * 1000, "ms")
    return f"{f'{value:#.3g}'.rstrip('.')} {unit}"


def clock_time(seconds: float) -> str:
    """Hours, minutes and seconds: 0:02:05; "unknown" for what is not finite."""
    if not math.isfinite(seconds):
        return "unknown"
    minutes, rest = divmod(max(0, round(seconds)), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def count(done: int, total: int | None) -> str:
    """50/450, as wide as the total; 50 where that is not known."""
    return str(done) if total is None else f"{done:>{len(str(total))}}/{total}"


def values_line(
    values: Mapping[str, float], *, prefix: str = "", nonfinite: Mapping[str, int] | None = None
) -> list[Part]:
    """Names and values on one line. What is not finite stands out, with how many of the numbers behind it were not.

    Args:
        values: numbers by name; those under `time/` are seconds and come last, and so do those called `eta`.
        prefix: left out of the names.
        nonfinite: how many of the numbers behind a mean were NaN or infinite, by name.
    """
    counts = nonfinite or {}
    shown = sorted(values, key=is_time)
    return joined(*(_value(name, values[name], prefix, counts.get(name, 0)) for name in shown))


def joined(*groups: Sequence[Part]) -> list[Part]:
    """Groups of parts side by side in one line, with a gap between them; those without any text are left out."""
    line: list[Part] = []
    for group in groups:
        if any(text for text, _ in group):
            line += [SEPARATOR, *group] if line else group
    return line


def is_time(name: str) -> bool:
    """Whether a value is a time by its name: `time/...` in seconds, or `eta`."""
    return name.startswith("time/") or name.rpartition("/")[2] == "eta"


def _value(name: str, value: float, prefix: str, bad: int) -> list[Part]:
    label = name.removeprefix(prefix) if not is_time(name) else name.removeprefix("time/").removeprefix("train/")
    parts = [(f"{label} ", "dim"), (_shown(name, value), "" if math.isfinite(value) else BAD)]
    return [*parts, (f" ({bad} not finite)", BAD)] if bad else parts


def _shown(name: str, value: float) -> str:
    if name.rpartition("/")[2] == "eta":
        return clock_time(value)
    return duration(value) if is_time(name) else number(value)


@dataclass(frozen=True, slots=True)
class Cell:
    """One result in the table of an epoch.

    Attributes:
        metric: the row.
        column: where it was measured: train, val, ...
        value: the number.
        best: the best so far, with its epoch; None where nobody keeps it.
        is_best: whether this is the best so far.
    """

    metric: str
    column: str
    value: float
    best: tuple[float, int] | None = None
    is_best: bool = False


def epoch_table(title: str, cells: Iterable[Cell]) -> Table:
    """The results of one epoch: a row for each metric, a column for each place where it was measured.

    Args:
        title: what the table is about.
        cells: the results; a `*` marks the best so far, and the last column tells which that is.
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
        found = {cell.column: _marked(cell) for cell in cells if cell.metric == metric}
        row = [found.get(column, Text("")) for column in columns]
        table.add_row(metric, *row, *([_best(bests.get(metric))] if bests else []))
    return table


def _marked(cell: Cell) -> Text:
    style = "bold green" if cell.is_best else "" if math.isfinite(cell.value) else BAD
    return Text(f"*{number(cell.value)}" if cell.is_best else number(cell.value), style=style)


def _best(best: tuple[float, int] | None) -> Text:
    return Text("") if best is None else Text.assemble(number(best[0]), (f"  epoch {best[1]}", "dim"))
