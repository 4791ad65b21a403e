"""What the commands that only look around show to people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.text import Text

from hookbus.commands.console import console
from hookbus.commands.layout import show_paragraph, show_table

if TYPE_CHECKING:
    from hookbus.commands.doctor import Report
    from hookbus.dispatch.explain import Explanation
    from hookbus.points import Point

__all__ = ["show_hooks", "show_metrics", "show_order", "show_points", "show_reports"]


def show_metrics(checkpoint: str, weights: str, metrics: Mapping[str, float]) -> None:
    """The results of a test.

    Args:
        checkpoint: what was tested.
        weights: which of its weights, "raw" or "averaged".
        metrics: by name.
    """
    which = ", averaged weights" if weights == "averaged" else ""
    console().print(f"[dim]{escape(checkpoint)}{which}[/]", soft_wrap=True)
    show_table(["metric", "value"], [(name, f"{value:.6g}") for name, value in metrics.items()])


def show_hooks(rows: Sequence[Mapping[str, Any]]) -> None:
    """The installed hooks.

    Args:
        rows: name, class, package and version of each, and whether it is blocked.
    """
    if not rows:
        console().print("No hooks are installed. Begin with: pip install hookbus-logger hookbus-checkpoint")
        return
    columns = ("name", "class", "package", "version")
    blocked = Text("blocked by HOOKBUS_BLOCK", "yellow")
    cells = [(*(str(row[column]) for column in columns), blocked if row["blocked"] else "") for row in rows]
    show_table([*columns, ""], cells)


def show_points(points: Iterable[Point], aliases: Mapping[str, Iterable[str]], more: Mapping[str, str]) -> None:
    """The points of a run, and those that packages declare.

    Args:
        points: of every run.
        aliases: the other names of each.
        more: by the name of another point, the package that declares it.
    """
    for point in points:
        show_paragraph(point.signature, 0, 8, "bold")
        notes = [f"Counted per {point.unit}."] if point.unit else []
        notes += [f"Also spelt {alias}." for alias in aliases[point.name]]
        show_paragraph(" ".join([point.doc, *notes]), 4)
    for name, package in more.items():
        show_paragraph(name, style="bold")
        show_paragraph(f"Declared by {package}.", 4)


def show_reports(reports: Sequence[Report]) -> None:
    """Which installed hooks can be imported."""
    if not reports:
        console().print("No hooks are installed.")
        return
    good, bad = Text("ok", "green"), Text("broken", "red")
    rows = [(good if each.ok else bad, each.name, each.package, each.problem) for each in reports]
    show_table(["", "name", "package", "problem"], rows, titles=2)
    broken = sum(not report.ok for report in reports)
    console().print(f"\n{len(reports)} installed, {broken or 'none'} broken")


def show_order(explanation: Explanation) -> None:
    """Each point with its listeners from first to last; then which package each hook comes from."""
    wishes = any(row.before or row.after for rows in explanation.points.values() for row in rows)
    columns = ["point", "priority", "number from", "when", *(["wishes"] if wishes else [])]
    cells: list[Sequence[str | Text]] = []
    packages: dict[str, str] = {}
    for point, rows in explanation.points.items():
        cells.append([Text(point, "bold")])
        for row in rows:
            packages[row.hook] = row.package
            asks = ", ".join([*(f"before {name}" for name in row.before), *(f"after {name}" for name in row.after)])
            cells.append([f"  {row.hook}", str(row.priority), row.source, row.when, *([asks] if wishes else [])])
    show_paragraph(f"order: {explanation.order}; hooks stand under each point from first to last")
    console().print()
    show_table(columns, cells)
    console().print()
    show_table(["hook", "package"], list(packages.items()))
