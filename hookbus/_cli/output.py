"""Output of the commands: tables and paragraphs in the width of standard output."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from hookbus._cli.console import escape_text, output_console
from hookbus._utils.values import escape_control_characters, shorten

if TYPE_CHECKING:
    from hookbus._cli.doctor import HookHealth
    from hookbus._cli.host_check import HostRow
    from hookbus._config.sources import Setting
    from hookbus._events.explain import Explanation
    from hookbus._events.points import Point

COLUMN_GAP = 2
"""Number of spaces between two columns."""

MISSING = "-"
"""What stands for an empty cell in the list of the cells of a row."""


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str | Text]], titles: int = 1) -> None:
    """Print a table, or, if it is too wide, each row as a title with its remaining cells below.

    Args:
        columns: Header; "" for a column without a title.
        rows: Cells; trailing cells may be omitted.
        titles: Number of leading cells that form the title of a row. Default: 1.
    """
    texts = [[Text(cell) if isinstance(cell, str) else cell for cell in cells] for cells in rows]
    header = [Text(column, "bold") for column in columns]
    widths = _fit_widths([header, *texts], output_console().width)
    if widths is None:
        _print_stacked([header, *texts], titles)
    else:
        _print_columns(header, texts, widths)


def print_paragraph(text: str, indent: int = 0, hanging: int = 0, style: str = "") -> None:
    """Print a paragraph, wrapped to the width of standard output.

    Args:
        text: Text to print.
        indent: Number of spaces before each line. Default: 0.
        hanging: Number of additional spaces before the second and later lines. Default: 0.
        style: rich style. Default: none.
    """
    first, later = " " * indent, " " * (indent + hanging)
    lines = textwrap.wrap(
        text,
        output_console().width,
        initial_indent=first,
        subsequent_indent=later,
        break_long_words=False,
        break_on_hyphens=False,
    )
    output_console().print(Text("\n".join(lines), style))


def print_pairs(rows: Sequence[tuple[str, str]], indent: int = 2) -> None:
    """Print names and descriptions in two columns; a description that does not fit is printed below its name.

    Args:
        rows: Names and descriptions.
        indent: Number of spaces before each line. Default: 2.
    """
    out = output_console()
    column = indent + max((cell_len(name) for name, _ in rows), default=0) + COLUMN_GAP
    for name, text in rows:
        start = " " * indent + name
        if not text or column + cell_len(text) <= out.width:
            gap = " " * (column - cell_len(start)) if text else ""
            out.print(Text.assemble(start, (gap + text, "dim")))
        else:
            out.print(Text(start))
            print_paragraph(text, indent + COLUMN_GAP, style="dim")


# -- helpers ---------------------------------------------------------------------------------------


def _fit_widths(rows: Sequence[Sequence[Text]], available: int) -> list[int] | None:
    """Return column widths that fit the available width, or None if words would have to break.

    The rightmost columns are narrowed first.
    """
    columns = [[row[i] for row in rows if i < len(row)] for i in range(len(rows[0]))]
    widths = [max(cell.cell_len for cell in column) for column in columns]
    excess = sum(widths) + COLUMN_GAP * (len(widths) - 1) - available
    # The first column is never narrowed: it contains the name that identifies a row.
    for i in reversed(range(1, len(widths))):
        longest_word = max(cell_len(word) for cell in columns[i] for word in cell.plain.split() or [""])
        reduction = min(max(excess, 0), widths[i] - longest_word)
        widths[i] -= reduction
        excess -= reduction
    return widths if excess <= 0 else None


def _print_columns(header: Sequence[Text], rows: Iterable[Sequence[Text]], widths: Sequence[int]) -> None:
    # The gaps are columns: whether the width of a column includes its padding depends on the version of rich.
    table = Table(box=None, pad_edge=False, padding=0)
    for index, (column, width) in enumerate(zip(header, widths, strict=True)):
        if index:
            table.add_column(width=COLUMN_GAP)
        table.add_column(column, width=width)
    for row in rows:
        cells = [text for cell in row for text in (cell, Text())]
        table.add_row(*cells[:-1])
    output_console().print(table, soft_wrap=False)


def _print_stacked(rows: Iterable[Sequence[Text]], titles: int) -> None:
    for row in rows:
        title = Text(" ").join(cell for cell in row[:titles] if cell)
        output_console().print(title)
        cells = [cell.plain for cell in row[titles:]]
        while cells and not cells[-1]:
            cells.pop()
        if cells:
            rest = ", ".join(cell or MISSING for cell in cells)
            print_paragraph(rest, len(title.plain) - len(title.plain.lstrip()) + 4)


UNITS = {"iter": "iterations", "batch": "batches", "step": "optimizer steps", "epoch": "epochs"}
"""Plural names of the units of points."""


def print_metrics(checkpoint: str, weights: str, hooks: Sequence[str], metrics: Mapping[str, float]) -> None:
    """Print the results of a test."""
    suffix = ", averaged weights" if weights == "averaged" else ""
    suffix += f", state of {', '.join(hooks)}" if hooks else ""
    output_console().print(f"[dim]{escape_text(checkpoint + suffix)}[/]")
    print_table(["metric", "value"], [(name, f"{value:.6g}") for name, value in metrics.items()])


def print_points(points: Iterable[Point], aliases: Mapping[str, Iterable[str]], more: Mapping[str, str]) -> None:
    """Print the points of a run, and the points that packages declare."""
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


def print_host_check(rows: Sequence[HostRow]) -> None:
    """Print what each hook can do in each trainer, with the reasons and differences below."""
    if not rows:
        output_console().print("The file contains no hooks.")
    styles = {"works": "green", "works approximately": "yellow", "cannot work": "red"}
    for host, group in groupby(rows, key=lambda row: row.host):
        output_console().print(Text(f"{host}:", "bold"))
        for row in group:
            output_console().print(Text.assemble((f"  {row.status:<19}", styles[row.status]), f"  {row.hook}"))
            for note in row.notes:
                print_paragraph(note, 23, 2)


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


def print_settings(settings: Iterable[Setting]) -> None:
    """Print the settings that differ from the built-in defaults, followed by the values that they replace."""
    rows: list[Sequence[str | Text]] = []
    for setting in settings:
        path = escape_control_characters(shorten(setting.path))
        value = Text("dropped", "yellow") if setting.dropped else _format_setting(setting.value)
        rows.append([path, value, setting.source])
        replaced = [("  overrides", _format_setting(old.value), old.source) for old in setting.overrides]
        rows += [[Text(cell, "dim") for cell in cells] for cells in replaced]
    print_table(["setting", "value", "source"], rows)


def _format_setting(value: Any) -> str:
    """Return a value as in a run file, on one line."""
    text = value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)
    return escape_control_characters(shorten(text))
