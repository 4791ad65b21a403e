"""Commands that read the histories of runs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from hookbus._cli.console import escape_text, handle_errors, output_console, print_json
from hookbus._cli.options import Json

Runs = Annotated[list[Path], typer.Argument(metavar="RUN...", help="Work directories of runs.", show_default=False)]
Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The directory that contains the runs.")]


def plot(
    runs: Runs,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The file to write: a page (.html) or an image (.png).")
    ] = Path("curves.html"),
    metric: Annotated[
        list[str] | None,
        typer.Option("--metric", "-m", help="A metric to plot, such as val/loss; repeatable. Default: all."),
    ] = None,
) -> None:
    """Plot the learning curves of one or several runs."""
    with handle_errors():
        from hookbus._cli.plots import plot as write_curves

        written = write_curves(runs, output, metric or ())
        output_console().print(escape_text(f"Wrote {written}."))


def runs(
    directory: Directory = Path("runs"),
    sort: Annotated[
        str | None,
        typer.Option(help="Sort by a column, a metric (the best run first) or a setting. Default: by name."),
    ] = None,
    json_: Json = False,
) -> None:
    """List the runs in a directory: outcome, best metrics, duration, and the settings in which they differ."""
    with handle_errors():
        from hookbus._cli.run_list import list_runs

        listed = list_runs(directory, sort)
        if json_:
            return print_json([asdict(run) for run in listed])
        from hookbus._cli.run_table import print_runs

        print_runs(listed, directory)
