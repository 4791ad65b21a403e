"""Output of the commands: tables and paragraphs in the width of standard output, and the summary of a training."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from hookbus._cli.console import escape_text, output_console
from hookbus._utils.plugin_entries import INSTALL_STANDARD
from hookbus._utils.values import escape_control_characters, shorten
from hookbus.distributed.process_group import world_size

if TYPE_CHECKING:
    from hookbus._cli.doctor import HookHealth
    from hookbus._cli.host_check import HostRow
    from hookbus._config.sources import Setting
    from hookbus._events.explain import Explanation
    from hookbus._events.points import Point
    from hookbus._run.run import Run

COLUMN_GAP = 2
"""Number of spaces between two columns."""


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
        if rest := ", ".join(cell.plain for cell in row[titles:] if cell):
            print_paragraph(rest, len(title.plain) - len(title.plain.lstrip()) + 4)


UNITS = {"iter": "iterations", "batch": "batches", "step": "optimizer steps", "epoch": "epochs"}
"""Plural names of the units of points."""


def print_metrics(checkpoint: str, weights: str, hooks: Sequence[str], metrics: Mapping[str, float]) -> None:
    """Print the results of a test."""
    suffix = ", averaged weights" if weights == "averaged" else ""
    suffix += f", state of {', '.join(hooks)}" if hooks else ""
    output_console().print(f"[dim]{escape_text(checkpoint + suffix)}[/]")
    print_table(["metric", "value"], [(name, f"{value:.6g}") for name, value in metrics.items()])


def print_hooks(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the installed hooks."""
    if not rows:
        output_console().print(f"No hooks are installed. Run: {INSTALL_STANDARD}", markup=False)
        return
    columns = ("name", "class", "package", "version")
    blocked = Text("blocked by HOOKBUS_BLOCK", "yellow")
    cells = [(*(str(row[column]) for column in columns), blocked if row["blocked"] else "") for row in rows]
    print_table([*columns, ""], cells)


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
        rows.append([path, _format_setting(setting.value), setting.source])
        replaced = [("  overrides", _format_setting(old.value), old.source) for old in setting.overrides]
        rows += [[Text(cell, "dim") for cell in cells] for cells in replaced]
    print_table(["setting", "value", "source"], rows)


def _format_setting(value: Any) -> str:
    """Return a value as in a run file, on one line."""
    text = value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)
    return escape_control_characters(shorten(text))


def print_summary(run: Run, file: Path, overrides: Sequence[str], requested: str | Path | None) -> None:
    """Print the output files and the commands to run next, on rank 0 only."""
    if run.work_dir is None or not run.ranks.is_main:
        return
    directory = run.work_dir.path
    moved = [] if requested is None or Path(requested) == directory else [f"work_dir={directory}"]
    out = output_console()
    out.print(f"\nThe files of this run are in [bold]{escape_text(str(directory))}[/]")
    rows = [(_relative_path(path, directory), meaning) for path, meaning in _iter_files(run, directory)]
    width = max((len(name) for name, _ in rows), default=0)
    for name, meaning in rows:
        out.print(f"  {escape_text(name.ljust(width))}  [dim]{escape_text(meaning)}[/]")
    out.print("\nNext steps")
    for command in _iter_commands(run, str(file), [*overrides, *moved]):
        out.print(escape_text(f"  {_get_program(command[0])} {shlex.join(command)}"))


def _iter_files(run: Run, directory: Path) -> Iterator[tuple[Path, str]]:
    best = {b.path: f"best {name}: {b.value:.4g}, epoch {b.epoch}" for name, b in run.best.items() if b.path}
    yield from best.items()
    newest = _newest_checkpoint(run)
    if newest is not None and newest not in best:
        yield newest, f"newest checkpoint, iteration {run.iters_done}"
    for path in sorted((directory / "logs").glob("[!.]*")):
        yield path, "log"
    for name, meaning in (("config.yaml", "all settings"), ("status.json", f"outcome: {run.outcome}")):
        if (directory / name).exists():
            yield directory / name, meaning


def _iter_commands(run: Run, file: str, overrides: list[str]) -> Iterator[list[str]]:
    newest = _newest_checkpoint(run)
    if newest is not None and run.outcome in ("finished", "stopped"):
        best = next((best.path for best in run.best.values() if best.path is not None), newest)
        yield ["test", file, *overrides, "--checkpoint", str(best)]
    if newest is not None and run.outcome == "finished":
        # A finished run has nothing left to train, so the suggested command doubles the limit.
        limits = {"epochs": run.max_epochs, "iterations": run.max_iters, "tokens": run.max_tokens}
        name, limit = next(((name, limit) for name, limit in limits.items() if limit), ("iterations", None))
        others = [override for override in overrides if not override.startswith(f"training.{name}=")]
        yield ["train", file, *others, f"training.{name}={2 * (limit or 1)}", "--resume"]
    elif newest is not None:
        yield ["train", file, *overrides, "--resume"]
    yield ["explain", file, *overrides]


def _newest_checkpoint(run: Run) -> Path | None:
    """Return the newest checkpoint that is not a best checkpoint, else the newest one, or None."""
    from hookbus._run.resume import get_checkpoint_directory
    from hookbus.checkpoint.sidecars import list_newest_first

    directory = get_checkpoint_directory(run) if run.get("checkpoint_saver") is not None else None
    checkpoints = list_newest_first(directory) if directory is not None else []
    best = {best.path for best in run.best.values()}
    return next((path for path in checkpoints if path not in best), next(iter(checkpoints), None))


def _relative_path(path: Path, directory: Path) -> str:
    return str(path.relative_to(directory) if path.is_relative_to(directory) else path)


def _get_program(command: str) -> str:
    """Return the command that the user ran, with torchrun and the number of processes for distributed training."""
    program = sys.argv[0]
    if command == "train" and world_size() > 1:
        is_single_node = world_size() == int(os.environ.get("LOCAL_WORLD_SIZE", "0"))
        return f"torchrun {f'--nproc-per-node {world_size()}' if is_single_node else '...'} -m hookbus"
    if Path(program).name == "__main__.py":
        return "python -m hookbus"
    return "hookbus" if program == shutil.which("hookbus") else shlex.quote(program)
