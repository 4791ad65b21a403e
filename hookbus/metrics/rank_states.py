"""Average of the metric states of ranks, with which a run resumes on another number of ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def average_states(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the state of rank 0 with the mean over the ranks of each logged value.

    Means over any number of ranks that all have this state are then the means over the ranks of `states`.

    Args:
        states: Results of `MetricStore.state_dict()`, by rank. A metric that a rank has logged in other iterations
            than rank 0 is averaged without that rank.
    """
    main = states[0]
    columns = {name: _average_column(name, column, states) for name, column in main["columns"].items()}
    windows = {name: _average_window(name, window, states) for name, window in main["windows"].items()}
    return {**main, "columns": columns, "windows": windows}


def _average_column(name: str, column: Mapping[str, Any], states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    columns = [state["columns"][name] for state in states if name in state["columns"]]
    same = [other["values"] for other in columns if _get_layout(other) == _get_layout(column)]
    return {**column, "values": _average(same)}


def _get_layout(column: Mapping[str, Any]) -> tuple[Any, ...]:
    return column["count"], column["open"], len(column["values"]), type(column["values"])


def _average(values: Sequence[Any]) -> Any:
    """Return the mean of lists or of tensors."""
    if isinstance(values[0], list):
        return [sum(row) / len(row) for row in zip(*values, strict=True)]
    return sum(values) / len(values)


def _average_window(name: str, window: Mapping[str, Any], states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    # Ranks on which the hook does not run, such as a logger, do not have its window.
    windows = [state["windows"][name] for state in states if name in state["windows"]]
    return {**window, "sums": {metric: _average_sums(metric, window, windows) for metric in window["sums"]}}


def _average_sums(metric: str, window: Mapping[str, Any], windows: Sequence[Mapping[str, Any]]) -> list[Any]:
    count = window["sums"][metric][1]
    all_sums = [other["sums"][metric] for other in windows if metric in other["sums"]]
    totals, _, nonfinite = zip(*(sums for sums in all_sums if sums[1] == count), strict=True)
    return [sum(totals) / len(totals), count, max(nonfinite)]
