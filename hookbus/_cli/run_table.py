"""Table of runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

from hookbus._cli.console import escape_text, output_console
from hookbus._cli.output import print_table
from hookbus._cli.run_list import ListedRun
from hookbus._utils.numbers import format_clock_time, format_number
from hookbus._utils.values import escape_control_characters, shorten
from hookbus.errors import format_path

STYLES = {"finished": "green", "stopped": "yellow", "preempted": "yellow", "interrupted": "yellow", "running": "cyan"}
MAX_VALUE_LENGTH = 40


def print_runs(runs: Sequence[ListedRun], directory: Path) -> None:
    """Print a table of runs, and the problems of damaged files below it.

    Args:
        runs: Runs, in this order.
        directory: Directory that was searched.
    """
    if not runs:
        output_console().print(
            escape_text(
                f"{format_path(directory)} contains no training runs. Pass the directory that contains their work "
                "directories."
            )
        )
        return
    metrics = list(dict.fromkeys(name for run in runs for name in run.best))
    settings = list(dict.fromkeys(name for run in runs for name in run.settings))
    columns = ["run", "outcome", "epochs", "time", *map(escape_control_characters, [*metrics, *settings])]
    print_table(columns, [_build_row(run, metrics, settings) for run in runs])
    for problem in (problem for run in runs for problem in run.problems):
        output_console().print(f"[yellow]warning:[/] {escape_text(problem)}")


def _build_row(run: ListedRun, metrics: Sequence[str], settings: Sequence[str]) -> list[str | Text]:
    outcome = Text(run.outcome or "unknown", STYLES.get(run.outcome, "red" if run.outcome else "dim"))
    duration = "" if run.seconds is None else format_clock_time(run.seconds)
    epochs = "" if run.epochs is None else str(run.epochs)
    values = ["" if name not in run.best else format_number(run.best[name]) for name in metrics]
    texts = [_format_value(run.settings[name]) if name in run.settings else "" for name in settings]
    return [escape_control_characters(run.name), outcome, epochs, duration, *values, *texts]


def _format_value(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return escape_control_characters(shorten(text, MAX_VALUE_LENGTH))
