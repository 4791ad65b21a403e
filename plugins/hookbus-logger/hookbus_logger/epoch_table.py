"""Content of the table of a run: one row per epoch and per further validation. Independent of the event bus."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from rich.cells import cell_len

from hookbus.writers import format_elapsed_time, format_number
from hookbus_logger.columns import Column

POSITION, TIME = "position", "time"
"""Names of the first column and of the column of the elapsed time, which are no names of values."""

OPTIMIZER_VALUES = ("lr", "momentum", "weight_decay")
NUMBER_WIDTH, RATE_WIDTH, TIME_WIDTH = 7, 8, 5
"""Widths in characters that are reserved for `*0.1234`, `1.23e-05` and `59:59`."""


@dataclass(frozen=True, slots=True)
class Row:
    """Row of the table.

    Attributes:
        position: Position in the run and its limit, such as "2/6"; "1.50/6" for a validation within an epoch, or
            "2/6 it 50" if the length of the epoch is unknown.
        values: Values by full name: `train/loss`, `val/accuracy`, `lr`.
        seconds: Elapsed time in seconds since the previous row; None if unknown.
        best: Names of the values that are the best so far.
        unit: Unit of the position: "epoch", "iteration" or "tokens".
    """

    position: str
    values: Mapping[str, float]
    seconds: float | None = None
    best: frozenset[str] = frozenset()
    unit: str = "epoch"


@dataclass(frozen=True, slots=True)
class Cell:
    """Cell of a row.

    Attributes:
        text: Text, with an asterisk before the best value.
        is_best: Whether the value is the best so far.
        is_finite: Whether the value is neither NaN nor infinite.
    """

    text: str
    is_best: bool = False
    is_finite: bool = True


@dataclass
class EpochTable:
    """Columns of the table of a run, which extend with the values of the rows. Rows are not stored.

    Attributes:
        tracked: Names of the metrics whose best value is tracked; their columns are the most important ones.
        unit: Title of the first column, the unit of the last row.
    """

    tracked: Collection[str] = ()
    unit: str = field(default="epoch", init=False)
    _widths: dict[str, int] = field(default_factory=dict, init=False)

    def add(self, row: Row) -> dict[str, Cell]:
        """Add a row.

        Returns:
            Cells by name of the column; columns without a value are missing.
        """
        cells = format_cells(row)
        self.unit = row.unit
        for name in row.values:
            self._remove_merged(name)
        for name, cell in cells.items():
            self._widths[name] = max(self._widths.get(name, _get_reserved_width(name)), cell_len(cell.text))
        return cells

    def reserve(self, position: str) -> None:
        """Reserve the width of the longest position, such as "100/100"."""
        self._widths[POSITION] = max(self._widths.get(POSITION, 0), len(position))

    @property
    def position_width(self) -> int:
        """Width in characters of the first column."""
        return max(len(self.unit), self._widths.get(POSITION, 0))

    @property
    def columns(self) -> list[Column]:
        """Columns of all rows so far: the position, losses, metrics, values of the optimizers and the time."""
        names = [name for name in self._widths if name not in (POSITION, TIME)]
        order = {_split(name)[1]: i for i, name in reversed([*enumerate(names)])}
        values = sorted(names, key=lambda name: _get_sort_key(name, order))
        titles = build_titles(values)
        return [
            Column(POSITION, self.unit, self.position_width),
            *(Column(name, titles[name], self._widths[name], self._get_rank(name)) for name in values),
            *([Column(TIME, TIME, self._widths[TIME], 5)] if TIME in self._widths else []),
        ]

    def _remove_merged(self, name: str) -> None:
        """Remove the column of the common value of the parameter groups if they have several values, or vice versa."""
        quantity = name.partition("/")[0]
        if is_optimizer_value(name):
            for other in [*self._widths]:
                if other.partition("/")[0] == quantity and (other == quantity) != (name == quantity):
                    del self._widths[other]

    def _get_rank(self, name: str) -> int:
        """Return the importance of a column: the position has rank 0 and the time rank 5."""
        stage, rest = _split(name)
        if name in self.tracked:
            return 1
        if stage and _is_loss(rest):
            return 2 if stage == "val" else 3
        return {"val": 4, "train": 7, "": 6 if name == "lr" else 8}[stage]


def format_cells(row: Row) -> dict[str, Cell]:
    """Return the cells of a row by name of the column."""
    cells = {POSITION: Cell(row.position)}
    for name, value in row.values.items():
        is_best = name in row.best
        cells[name] = Cell("*" * is_best + format_value(name, value), is_best, math.isfinite(value))
    if row.seconds is not None:
        cells[TIME] = Cell(format_elapsed_time(row.seconds))
    return cells


def format_value(name: str, value: float) -> str:
    """Return a value with four significant digits, or three for a value of the optimizers."""
    return f"{value:.3g}" if is_optimizer_value(name) else format_number(value)


def is_optimizer_value(name: str) -> bool:
    """Return whether a name denotes a value of the optimizers, such as `lr` or `lr/head`."""
    return name.partition("/")[0] in OPTIMIZER_VALUES


def build_titles(names: Collection[str]) -> dict[str, str]:
    """Return the titles of values: names without `val/`, unless a training metric has the same name."""
    trained = {rest for stage, rest in map(_split, names) if stage == "train"}
    return {name: _clean(_build_title(name, trained)) for name in names}


def _build_title(name: str, trained: Collection[str]) -> str:
    stage, rest = _split(name)
    return rest if stage == "val" and rest not in trained else name


def _split(name: str) -> tuple[str, str]:
    """Return the stage of a value, "train", "val" or "", and the rest of the name."""
    stage, _, rest = name.partition("/")
    return (stage, rest) if stage in ("train", "val") and rest else ("", name)


def _is_loss(rest: str) -> bool:
    return rest.rpartition("/")[2] == "loss"


def _get_sort_key(name: str, order: Mapping[str, int]) -> tuple[int, int, int]:
    """Return the sort key of a column: losses of training and validation, metrics, values of the optimizers."""
    stage, rest = _split(name)
    if not stage:
        return 2, order[rest], 0
    # The values of one metric are next to each other.
    return (0, stage == "val", order[rest]) if _is_loss(rest) else (1, order[rest], stage == "val")


def _get_reserved_width(name: str) -> int:
    if name == TIME:
        return TIME_WIDTH
    return RATE_WIDTH if is_optimizer_value(name) else 0 if name == POSITION else NUMBER_WIDTH


def _clean(title: str) -> str:
    """Return a title without line breaks and escape sequences."""
    return "".join(character if character.isprintable() else "?" for character in title)
