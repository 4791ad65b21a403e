"""Output of `hookbus plan`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rich.text import Text

from hookbus._cli.console import output_console
from hookbus._cli.output import UNITS, print_paragraph, print_table
from hookbus._events.explain import NEVER_DUE
from hookbus._utils.numbers import format_quantity
from hookbus.lifecycle import POINTS
from hookbus.trainer.planned_events import COUNTED_POINTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hookbus._events.points import Unit
    from hookbus.trainer.plan import FileRow, Plan
    from hookbus.trainer.planned_events import PlannedEvents, PlannedListener

UNKNOWN = "?"
"""What stands for a number that depends on the run."""

EVALUATION_POINTS = frozenset(name for name in POINTS if "_test" in name or "_predict" in name)
"""Points that a training does not reach."""


def print_plan(plan: Plan) -> None:
    """Print the length of the training, the calls of the hooks by point, and the files."""
    _print_length(plan.events)
    output_console().print()
    _print_listeners(plan.events.listeners)
    output_console().print()
    if plan.files:
        _print_files(plan)
    for hook in plan.unknown:
        print_paragraph(f"{hook}: writes files that it does not list")


def format_size(size: int) -> str:
    """Return a number of bytes with three significant digits: `12 B`, `3.45 kB`, `67.8 MB`."""
    value, unit = float(size), "B"
    for following in ("kB", "MB", "GB", "TB"):
        if value < 999.5:
            break
        value, unit = value / 1000, following
    decimals = 0 if unit == "B" or value >= 100 else 1 if value >= 10 else 2
    return f"{value:.{decimals}f} {unit}"


def _print_length(events: PlannedEvents) -> None:
    counts = {"epoch": events.epochs, "iteration": events.iterations, "optimizer step": events.steps}
    parts = [format_quantity(number, unit) for unit, number in counts.items() if number]
    print_paragraph(", ".join(parts) or "The length of the training depends on the run.", style="bold")
    if events.validations is None:
        print_paragraph("The number of validations depends on the run.")
        return
    if 0 in events.validations:
        print_paragraph("1 validation before training, after the listeners of before_train; its results are discarded")
    if during := [number for number in events.validations if number]:
        numbers = _format_numbers(during, len(during))
        print_paragraph(f"{format_quantity(len(during), 'validation')}, after iteration {numbers}")


def _print_listeners(listeners: Sequence[PlannedListener]) -> None:
    """Print the points in the order of a run. Hooks that are called equally often at a point share a row."""
    groups: dict[_Group, list[str]] = {}
    on_request: dict[str, list[str]] = {}
    for row in listeners:
        if row.point in COUNTED_POINTS and row.schedule != NEVER_DUE:
            key = _Group(row.point, row.schedule, row.unit, row.count, tuple(row.first))
            groups.setdefault(key, []).append(row.hook)
        elif row.point not in COUNTED_POINTS | EVALUATION_POINTS:
            on_request.setdefault(row.point, []).append(row.hook)
    print_table(["point", "calls", "first", "schedule", "hooks"], list(_iter_group_cells(groups)))
    if on_request:
        points = "; ".join(f"{point}: {', '.join(hooks)}" for point, hooks in on_request.items())
        print_paragraph(f"on request: {points}", hanging=2)


class _Group(NamedTuple):
    """Listeners of one point that are called equally often, see `PlannedListener`."""

    point: str
    schedule: str
    unit: Unit | None
    calls: int | None
    first: tuple[int, ...]


def _iter_group_cells(groups: Mapping[_Group, Sequence[str]]) -> Iterator[list[str | Text]]:
    shown = ""
    for group, hooks in groups.items():
        first = f"{UNITS[group.unit]} {_format_numbers(group.first, group.calls)}" if group.unit and group.first else ""
        point = Text(group.point, "dim" if group.point == shown else "bold")
        yield [point, _format_count(group.calls), first, group.schedule or "every event", ", ".join(hooks)]
        shown = group.point


def _format_numbers(numbers: Sequence[int], count: int | None) -> str:
    shown = [f"{number:,}" for number in numbers[:3]]
    return ", ".join([*shown, "..."] if count is None or count > len(shown) else shown)


def _format_count(count: int | None) -> Text:
    return Text(UNKNOWN, "dim") if count is None else Text(f"{count:,}", "dim" if count == 0 else "")


def _print_files(plan: Plan) -> None:
    place = f" in {plan.work_dir}" if plan.work_dir else ""
    print_paragraph(f"files{place}; {UNKNOWN}: depends on the run", style="bold")
    print_table(["file", "hook", "written", "times", "size", "kept"], [_build_cells(row) for row in plan.files])
    print_paragraph(f"about {format_size(plan.total)} at the end, as far as known", style="bold")


def _build_cells(row: FileRow) -> list[str | Text]:
    size = UNKNOWN if row.size is None else "link" if row.size == 0 else format_size(row.size)
    is_single = row.when == "once" or row.when.endswith("appended")
    kept = "" if is_single else "all" if row.keep is None else f"{row.keep:,}"
    return [row.path, row.hook, row.when, _format_count(row.count), size, kept]
