"""Curves of histories: which metrics share a chart, and the points of each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hookbus._run.history_file import FIRST_COLUMNS
from hookbus.metrics.logged import STAGES

Point = tuple[float, float]
Rows = Sequence[Mapping[str, Any]]
"""Rows of a history, in their order."""

LEARNING_RATES = "learning rate"
LAST = (LEARNING_RATES,)
"""Charts after those of the metrics."""


def group_curves(histories: Mapping[str, Rows]) -> dict[str, dict[str, list[Point]]]:
    """Return the points of each curve by title of the chart and name of the curve.

    A chart contains one metric in all stages and loaders, such as `train/loss` and `val/loss`, of all runs.

    Args:
        histories: Histories by name of the run; the name is part of the name of a curve if there are several.
    """
    charts: dict[str, dict[str, list[Point]]] = {}
    is_by_epoch = get_unit(histories) == "epoch"
    for run, history in histories.items():
        for column in dict.fromkeys(column for row in history for column in row):
            if column in FIRST_COLUMNS or column == "tokens":
                continue
            name = f"{run} {column}" if len(histories) > 1 else column
            points = [
                (float(row["epoch" if is_by_epoch else "iteration"]), float(row[column]))
                for row in history
                if row.get(column) is not None
            ]
            charts.setdefault(get_title(column), {})[name] = points
    return dict(sorted(charts.items(), key=lambda chart: (chart[0] in LAST, chart[0] != "loss")))


def get_unit(histories: Mapping[str, Rows]) -> str:
    """Return the unit of the horizontal axis: "epoch" if each row of each history is that of an epoch."""
    kinds = {row["kind"] for history in histories.values() for row in history}
    return "epoch" if kinds <= {"epoch"} else "iteration"


def get_title(column: str) -> str:
    """Return the title of the chart of a column: `loss` for `train/loss` and `val/loader/loss`."""
    stage, _, rest = column.partition("/")
    if stage == "lr":
        return LEARNING_RATES
    return rest.rpartition("/")[2] if stage in STAGES and rest else stage
