"""The summary of a model as a table: of rich in a terminal, as plain text elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hookbus_model_summary.forward_pass import ModuleCalls, Shape
from hookbus_model_summary.parameters import Parameters
from hookbus_model_summary.summary import ModelSummary, ModuleSummary

COLUMNS = ("name", "type", "parameters", "trainable", "inputs", "outputs", "FLOPs")
NUMERIC = frozenset({"parameters", "trainable", "FLOPs"})
MEGABYTE = 10**6
MAX_SHAPES = 3
"""Maximum number of tensors of a module that are listed."""


def print_summary(summary: ModelSummary, console: Console) -> None:
    """Print a summary.

    Args:
        summary: The summary. Without rows, only the totals are printed.
        console: Console to print on. The table has no lines and no styles if it is not a terminal.
    """
    table = Table(box=box.SIMPLE_HEAD if console.is_terminal else None, pad_edge=False)
    for column in COLUMNS:
        is_name = column == "name"
        table.add_column(Text(column), justify="right" if column in NUMERIC else "left", no_wrap=is_name)
    for row in summary.rows:
        table.add_row(*(Text(cell) for cell in _format_row(row)))
    if summary.rows:
        console.print(table)
    for line in describe_totals(summary):
        console.print(Text(line), soft_wrap=True)


def describe_totals(summary: ModelSummary) -> list[str]:
    """Return the lines below the table: parameters, size and FLOPs."""
    parameters = summary.parameters
    lines = [
        f"{summary.type}: {_format_total(parameters)} parameters, {parameters.trainable:,} trainable, "
        f"{parameters.total - parameters.trainable:,} not trainable",
        f"size: {summary.parameter_bytes / MEGABYTE:.3f} MB of parameters, "
        f"{summary.buffer_bytes / MEGABYTE:.3f} MB of buffers",
    ]
    if summary.note:
        return [*lines, f"shapes and FLOPs: unknown, because {summary.note}"]
    inputs = f" for inputs {format_shapes(summary.inputs)}" if summary.inputs else ""
    return [*lines, f"FLOPs: {summary.flops:,} in a forward pass{inputs}"]


def to_dict(summary: ModelSummary) -> dict[str, Any]:
    """Return a summary as built-in Python types, for JSON."""
    rows = [
        {"name": row.name, "type": row.type, **asdict(row.parameters), **_calls_to_dict(row.calls)}
        for row in summary.rows
    ]
    sizes = {"parameter_bytes": summary.parameter_bytes, "buffer_bytes": summary.buffer_bytes}
    totals = {**asdict(summary.parameters), **sizes, "flops": summary.flops, "note": summary.note}
    return {"type": summary.type, "modules": rows, "totals": totals}


def _calls_to_dict(calls: ModuleCalls | None) -> dict[str, Any]:
    if calls is None:
        return {"inputs": None, "outputs": None, "flops": None}
    return {"inputs": list(calls.inputs), "outputs": list(calls.outputs), "flops": calls.flops}


def _format_row(row: ModuleSummary) -> Iterator[str]:
    yield row.name or row.type
    yield row.type
    yield _format_total(row.parameters)
    yield f"{row.parameters.trainable:,}"
    if row.calls is None:
        yield from ("-", "-", "-")
    else:
        yield from (format_shapes(row.calls.inputs), format_shapes(row.calls.outputs), f"{row.calls.flops:,}")


def _format_total(parameters: Parameters) -> str:
    if parameters.uninitialized and not parameters.total:
        return "uninitialized"
    more = " + uninitialized" if parameters.uninitialized else ""
    return f"{parameters.total:,}{f' + {parameters.shared:,} shared' if parameters.shared else ''}{more}"


def format_shapes(shapes: Sequence[Shape]) -> str:
    """Return shapes as text, such as "[2, 3], [2]"; "-" if there are none."""
    listed = [f"[{', '.join(map(str, shape))}]" for shape in shapes[:MAX_SHAPES]]
    return ", ".join([*listed, *(["..."] if len(shapes) > MAX_SHAPES else [])]) or "-"
