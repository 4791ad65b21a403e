"""Measuring side by side in one process: rounds in turn, ratios within a round, the median over rounds."""

from __future__ import annotations

import gc
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["against", "interleaved", "nothing", "print_table", "report", "written_out"]


def interleaved(candidates: Mapping[str, Callable[[], Any]], *, calls: int, rounds: int) -> dict[str, list[float]]:
    """Nanoseconds per call of each candidate, one number per round; all candidates take turns in every round.

    Args:
        candidates: what is measured, by name; an empty function among them shows what the measuring costs.
        calls: calls per round.
        rounds: how often each has its turn.
    """
    results: dict[str, list[float]] = {name: [] for name in candidates}
    numbers = range(calls)
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            for name, call in candidates.items():
                began = time.perf_counter_ns()
                for _ in numbers:
                    call()
                results[name].append((time.perf_counter_ns() - began) / calls)
    finally:
        gc.enable()
    return results


def nothing() -> None:
    """The empty call, whose cost is that of measuring."""


def written_out(methods: Sequence[Callable[..., Any]], *arguments: object) -> Callable[[], None]:
    """The calls of the methods as if written by hand, one below the other: the floor of every dispatcher."""
    names = {f"m{i}": method for i, method in enumerate(methods)}
    given = {f"a{i}": argument for i, argument in enumerate(arguments)}
    lines = [f"    {name}({', '.join(given)})" for name in names] or ["    pass"]
    namespace: dict[str, Any] = {**names, **given}
    exec("def calls():\n" + "\n".join(lines), namespace)
    return namespace["calls"]  # type: ignore[no-any-return]


def against(results: Mapping[str, list[float]], name: str, floor: str, nothing: str) -> tuple[float, float]:
    """(nanoseconds, ratio to the floor) of a candidate: medians over rounds, the cost of measuring taken off."""
    empty = results[nothing]
    own = [a - b for a, b in zip(results[name], empty, strict=True)]
    base = [a - b for a, b in zip(results[floor], empty, strict=True)]
    ratios = [a / b for a, b in zip(own, base, strict=True) if b > 0]
    return statistics.median(own), statistics.median(ratios) if ratios else float("nan")


def print_table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """A table in plain text."""
    widths = [max(len(row[i]) for row in [columns, *rows]) for i in range(len(columns))]
    print(title)
    for row in [columns, ["-" * width for width in widths], *rows]:
        print(
            "  ".join(
                cell.ljust(width) if i == 0 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
        )
    print()


def report(name: str, **figures: Any) -> None:
    """One JSON line, for programs."""
    print(json.dumps({"benchmark": name, **figures}))
