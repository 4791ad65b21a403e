"""Output of `hookbus trace`: time per hook and point, and the lines of code that wait for the device."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from hookbus._cli.console import output_console
from hookbus._cli.output import print_paragraph, print_table
from hookbus._utils.numbers import format_ns
from hookbus._utils.values import escape_control_characters, shorten

if TYPE_CHECKING:
    from hookbus.testing.spans import HookTrace, Place
    from hookbus.testing.trace_summary import TraceRow, TraceSummary

MAX_ROWS = 20
"""Maximum number of lines of code, and of calls outside of the iterations, that are listed."""


def print_trace(traces: Sequence[HookTrace]) -> None:
    """Print the tables of each rank, and the synchronizations of all."""
    for trace in traces:
        if len(traces) > 1:
            output_console().print(Text(f"rank {trace.rank}", "bold"))
        _print_summary(trace.summarize())
        output_console().print()
    _print_synchronizations(traces)


def _print_summary(summary: TraceSummary) -> None:
    count = summary.iterations
    mean = summary.iteration_ns / count
    waiting = f"waiting for data {summary.data_ns / summary.iteration_ns:.1%}" if summary.data_ns else ""
    parts = [
        f"hooks {format_ns(summary.hooks_ns / count)} ({summary.share:.1%})",
        *([waiting] if waiting else []),
    ]
    unit = "iteration" if count == 1 else "iterations"
    print_paragraph(f"{count} {unit} of {format_ns(mean)}: {', '.join(parts)}", style="bold")
    if summary.in_iterations:
        _print_table(
            ["hook", "point", "calls", "per call", "longest", "per iteration", "share", "synchronizations"],
            (
                [*_format_calls(row), format_ns(row.total_ns / count), f"{row.total_ns / summary.iteration_ns:.1%}"]
                for row in summary.in_iterations
            ),
            summary.in_iterations,
        )
    else:
        print_paragraph("No hook was called in these iterations.")
    if summary.outside:
        output_console().print(Text("\noutside of these iterations, and in the first one", "bold"))
        shown = summary.outside[:MAX_ROWS]
        _print_table(
            ["hook", "point", "calls", "per call", "longest", "total", "synchronizations"],
            ([*_format_calls(row), format_ns(row.total_ns)] for row in shown),
            shown,
        )
        _print_omitted(len(summary.outside) - len(shown))


def _format_calls(row: TraceRow) -> list[str]:
    return [
        row.hook,
        row.point,
        str(row.calls),
        format_ns(row.total_ns / row.calls),
        format_ns(row.max_ns),
    ]


def _print_table(columns: Sequence[str], cells: Iterable[list[str]], rows: Sequence[TraceRow]) -> None:
    """Print a table; the numbers of synchronizations are the last column, and red if there are any."""
    counts = [Text(str(row.synchronizations), "red") if row.synchronizations else Text("-", "dim") for row in rows]
    print_table(columns, ([*texts, count] for texts, count in zip(cells, counts, strict=True)), titles=2)


def _print_synchronizations(traces: Sequence[HookTrace]) -> None:
    places = Counter((event.hook, event.place) for trace in traces for event in trace.synchronizations)
    if not places:
        print_paragraph("No hook waits for the device.")
        return
    output_console().print(Text("code that waits for the device, by number of times", "bold"))
    rows = [(str(count), hook, _format_place(place), _format_code(place)) for (hook, place), count in _rank(places)]
    print_table(["times", "hook", "place", "code"], rows[:MAX_ROWS], titles=3)
    _print_omitted(len(rows) - MAX_ROWS)


def _print_omitted(count: int) -> None:
    if count > 0:
        print_paragraph(f"... and {count} more", style="dim")


def _rank(places: Counter[tuple[str, Place]]) -> list[tuple[tuple[str, Place], int]]:
    return sorted(places.items(), key=lambda item: (-item[1], item[0]))


def _format_place(place: Place) -> str:
    """Return file and line; the file relative to the current directory or to the folder of the package."""
    path = Path(place.file)
    if path.is_relative_to(Path.cwd()):
        return f"{os.path.relpath(path)}:{place.line}"
    return f"{path.parent.name}/{path.name}:{place.line}"


def _format_code(place: Place) -> str:
    return escape_control_characters(shorten(place.text))
