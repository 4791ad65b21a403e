"""Output of the commands that display information."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from hookbus._cli.console import escape_text, output_console
from hookbus._cli.layout import print_paragraph, print_table

if TYPE_CHECKING:
    from hookbus._cli.doctor import HookHealth
    from hookbus._events.explain import Explanation
    from hookbus._events.points import Point

UNITS = {"iter": "iterations", "batch": "batches", "step": "optimizer steps", "epoch": "epochs"}
"""Plural names of the units of points."""


def print_metrics(checkpoint: str, weights: str, hooks: Sequence[str], metrics: Mapping[str, float]) -> None:
    """Print the results of a test.

    Args:
        checkpoint: Tested checkpoint.
        weights: Tested weights, "raw" or "averaged".
        hooks: Names of the hooks whose state was restored.
        metrics: Results by name.
    """
    suffix = ", averaged weights" if weights == "averaged" else ""
    suffix += f", state of {', '.join(hooks)}" if hooks else ""
    output_console().print(f"[dim]{escape_text(checkpoint + suffix)}[/]", soft_wrap=True)
    print_table(["metric", "value"], [(name, f"{value:.6g}") for name, value in metrics.items()])


def print_hooks(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the installed hooks.

    Args:
        rows: Name, class, package, version and blocked flag of each hook.
    """
    if not rows:
        output_console().print("No hooks are installed. Run: pip install hookbus-logger hookbus-checkpoint")
        return
    columns = ("name", "class", "package", "version")
    blocked = Text("blocked by HOOKBUS_BLOCK", "yellow")
    cells = [(*(str(row[column]) for column in columns), blocked if row["blocked"] else "") for row in rows]
    print_table([*columns, ""], cells)


def print_points(points: Iterable[Point], aliases: Mapping[str, Iterable[str]], more: Mapping[str, str]) -> None:
    """Print the points of a run, and the points that packages declare.

    Args:
        points: Built-in points.
        aliases: Aliases by the name of the point.
        more: Declaring package by the name of an additional point.
    """
    for point in points:
        print_paragraph(point.signature, 0, 8, "bold")
        notes = [f"Schedules count {UNITS[point.unit]}."] if point.unit else []
        notes += [f"Alias: {alias}." for alias in aliases[point.name]]
        print_paragraph(" ".join([point.description, *notes]), 4)
    for name, package in more.items():
        print_paragraph(name, style="bold")
        print_paragraph(f"Declared by {package}.", 4)


def print_hook_health(reports: Sequence[HookHealth]) -> None:
    """Print the installed hooks with their import errors."""
    if not reports:
        output_console().print("No hooks are installed.")
        return
    good, bad = Text("ok", "green"), Text("broken", "red")
    rows = [(good if report.ok else bad, report.name, report.package, report.problem) for report in reports]
    print_table(["", "name", "package", "problem"], rows, titles=2)
    broken = sum(not report.ok for report in reports)
    output_console().print(f"\n{len(reports)} installed, {broken or 'none'} broken")


def print_order(explanation: Explanation) -> None:
    """Print each point with its listeners in call order, followed by the package of each hook."""
    # Most runs have no before=/after= constraints, and an empty column would waste width.
    has_constraints = any(row.before or row.after for rows in explanation.points.values() for row in rows)
    columns = ["point", "priority", "priority from", "when", *(["constraints"] if has_constraints else [])]
    cells: list[Sequence[str | Text]] = []
    packages: dict[str, str] = {}
    actions = {f"action {action}": rows for action, rows in explanation.actions.items()}
    for point, rows in {**explanation.points, **actions}.items():
        cells.append([Text(point, "bold")])
        for row in rows:
            packages[row.hook] = row.package
            constraints = ", ".join(
                [*(f"before {name}" for name in row.before), *(f"after {name}" for name in row.after)]
            )
            cell = [f"  {row.hook}", str(row.priority), row.source, row.when or row.role]
            cells.append([*cell, *([constraints] if has_constraints else [])])
    print_paragraph(f"order: {explanation.order}; hooks are listed in call order")
    output_console().print()
    print_table(columns, cells)
    output_console().print()
    print_table(["hook", "package"], list(packages.items()))
