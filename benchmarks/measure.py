"""Interleaved measurements in one process: ratios are computed per round, then the median over rounds is taken."""

from __future__ import annotations

import gc
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["compare_to_floor", "measure_interleaved", "nothing", "print_table", "report", "unrolled_calls"]


def measure_interleaved(
    candidates: Mapping[str, Callable[[], Any]], *, calls: int, rounds: int
) -> dict[str, list[float]]:
    """Measure candidates in turn and return the nanoseconds per call of each round.

    Args:
        candidates: Functions to measure, by name. Include an empty function to measure the overhead.
        calls: Number of calls per round.
        rounds: Number of rounds.

    Returns:
        Nanoseconds per call by name, one value per round.
    """
    results: dict[str, list[float]] = {name: [] for name in candidates}
    numbers = range(calls)
    gc.collect()
    # A collection would be attributed to whichever candidate triggers it.
    gc.disable()
    try:
        for _ in range(rounds):
            for name, call in candidates.items():
                start = time.perf_counter_ns()
                for _ in numbers:
                    call()
                results[name].append((time.perf_counter_ns() - start) / calls)
    finally:
        gc.enable()
    return results


def nothing() -> None:
    """Do nothing. Its cost is the overhead of the measurement."""


def unrolled_calls(methods: Sequence[Callable[..., Any]], *arguments: object) -> Callable[[], None]:
    """Return a function that calls the methods in sequence, as hand-written code would: the floor for dispatchers."""
    names = {f"m{i}": method for i, method in enumerate(methods)}
    constants = {f"a{i}": argument for i, argument in enumerate(arguments)}
    lines = [f"    {name}({', '.join(constants)})" for name in names] or ["    pass"]
    namespace: dict[str, Any] = {**names, **constants}
    exec("def calls():\n" + "\n".join(lines), namespace)
    return namespace["calls"]  # type: ignore[no-any-return]


def compare_to_floor(results: Mapping[str, list[float]], name: str, floor: str, nothing: str) -> tuple[float, float]:
    """Return the median nanoseconds and the median ratio to the floor of a candidate, without the overhead."""
    empty = results[nothing]
    own = [a - b for a, b in zip(results[name], empty, strict=True)]
    base = [a - b for a, b in zip(results[floor], empty, strict=True)]
    ratios = [a / b for a, b in zip(own, base, strict=True) if b > 0]
    return statistics.median(own), statistics.median(ratios) if ratios else float("nan")


def print_table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """Print a plain-text table."""
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
    """Print one JSON line for scripts."""
    print(json.dumps({"benchmark": name, **figures}))
