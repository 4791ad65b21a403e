"""What the commands that only look around show to people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from hookbus.commands.console import console, paragraph, table_of

if TYPE_CHECKING:
    from hookbus.commands.doctor import Report
    from hookbus.dispatch.explain import Explanation
    from hookbus.lifecycle import Point

__all__ = ["show_hooks", "show_metrics", "show_order", "show_points", "show_reports"]


def show_metrics(checkpoint: str, weights: str, metrics: Mapping[str, float]) -> None:
    """The results of a test.

    Args:
        checkpoint: what was tested.
        weights: which of its weights, "raw" or "averaged".
        metrics: by name.
    """
    table = table_of("metric", "value")
    for name, value in metrics.items():
        table.add_row(escape(name), f"{value:.6g}")
    which = ", averaged weights" if weights == "averaged" else ""
    console().print(f"[dim]{escape(checkpoint)}{which}[/]")
    console().print(table)


def show_hooks(rows: Sequence[Mapping[str, Any]]) -> None:
    """The installed hooks.

    Args:
        rows: name, class, package and version of each, and whether it is blocked.
    """
    if not rows:
        console().print("No hooks are installed. Begin with: pip install hookbus-logger hookbus-checkpoint")
        return
    table = table_of("name", "class", "package", "version", "")
    for row in rows:
        note = "[yellow]blocked by HOOKBUS_BLOCK[/]" if row["blocked"] else ""
        table.add_row(*(escape(str(row[k])) for k in ("name", "class", "package", "version")), note)
    console().print(table)


def show_points(points: Iterable[Point], aliases: Mapping[str, Iterable[str]], more: Mapping[str, str]) -> None:
    """The points of a run, and those that packages declare.

    Args:
        points: of every run.
        aliases: the other names of each.
        more: by the name of another point, the package that declares it.
    """
    for point in points:
        console().print(f"[bold]{paragraph(point.signature, 0, 8)}[/]")
        notes = [f"Counted per {point.unit}."] if point.unit else []
        notes += [f"Also spelt {alias}." for alias in aliases[point.name]]
        console().print(paragraph(" ".join([point.doc, *notes]), 4))
    for name, package in more.items():
        console().print(f"[bold]{escape(name)}[/]\n{paragraph(f'Declared by {package}.', 4)}")


def show_reports(reports: Sequence[Report]) -> None:
    """Which installed hooks can be imported."""
    if not reports:
        console().print("No hooks are installed.")
        return
    table = table_of("", "name", "package", "problem")
    for report in reports:
        mark = "[green]ok[/]" if report.ok else "[red]broken[/]"
        table.add_row(mark, escape(report.name), escape(report.package), escape(report.problem))
    console().print(table)
    broken = sum(not report.ok for report in reports)
    console().print(f"\n{len(reports)} installed, {broken or 'none'} broken")


def show_order(explanation: Explanation) -> None:
    """Each point with its listeners from first to last; then which package each hook comes from."""
    wishes = any(row.before or row.after for rows in explanation.points.values() for row in rows)
    table = table_of("point", "priority", "number from", "when", *(["wishes"] if wishes else []))
    packages: dict[str, str] = {}
    for point, rows in explanation.points.items():
        table.add_row(f"[bold]{escape(point)}[/]")
        for row in rows:
            packages[row.hook] = row.package
            asks = ", ".join([*(f"before {name}" for name in row.before), *(f"after {name}" for name in row.after)])
            cells = (f"  {row.hook}", str(row.priority), row.source, row.when, *([asks] if wishes else []))
            table.add_row(*map(escape, cells))
    console().print(f"order: {explanation.order}; hooks stand under each point from first to last\n")
    console().print(table)
    _show_packages(packages)


def _show_packages(packages: Mapping[str, Any]) -> None:
    table = table_of("hook", "package")
    for hook, package in packages.items():
        table.add_row(escape(hook), escape(package))
    console().print()
    console().print(table)
