"""Learning curves of runs as a page or an image."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from hookbus._cli.output_file import check_output, explain_output_errors
from hookbus._run.history import History
from hookbus._run.history_curves import get_unit, group_curves
from hookbus._run.history_file import HISTORY, read_rows
from hookbus._run.status import STATUS
from hookbus._utils.page import build_charts, build_page
from hookbus.checkpoint.atomic_files import atomic_write
from hookbus.errors import ConfigError, HookbusError, format_path
from hookbus.metrics.results import resolve_metric_name

Charts = Mapping[str, Mapping[str, Sequence[tuple[float, float]]]]

SUFFIXES = (".html", ".png")
COLUMNS = 2
UNFINISHED = "the run has not completed an epoch or a validation"
CHART_INCHES = (5.2, 3.2)


def plot(runs: Sequence[Path], output: Path, metrics: Sequence[str]) -> Path:
    """Write the learning curves of runs to a file, and return its path.

    Args:
        runs: Work directories.
        output: File to write: `.html` for a self-contained page, `.png` for an image.
        metrics: Names of the metrics to plot; all without names.

    Raises:
        ConfigError: If the suffix of the file or a metric is unknown, or the folder of the file does not exist.
        HookbusError: If a run has no history, matplotlib is required and missing, or the file cannot be written.
    """
    if output.suffix not in SUFFIXES:
        raise ConfigError(
            f"--output: the suffix must be {' or '.join(SUFFIXES)}, got {output.name!r}. Pass another file."
        )
    check_output(output)
    histories = read_histories(runs)
    selected = {name: select(history, metrics, name) for name, history in histories.items()}
    charts, unit = group_curves(selected), get_unit(selected)
    write = _write_page if output.suffix == ".html" else _write_image
    with explain_output_errors(output):
        write(output, charts, unit, list(histories))
    return output


def read_histories(runs: Sequence[Path]) -> dict[str, History]:
    """Return the history of each run by name, the shortest end of its path that no other run has.

    Raises:
        HookbusError: If a run has no history.
    """
    paths = [os.path.abspath(run) for run in runs]
    if repeated := [str(run) for index, run in enumerate(runs) if paths[index] in paths[:index]]:
        raise ConfigError(f"hookbus plot: a run is passed more than once, got {', '.join(repeated)}. Pass it once.")
    histories = {}
    for name, directory in zip(name_runs(runs), runs, strict=True):
        path = _find_history(directory)
        rows, problems = read_rows(path)
        for problem in problems:
            logging.getLogger("hookbus").warning("%s", problem)
        if not rows:
            raise HookbusError(f"{format_path(path)} has no rows: {UNFINISHED}. Pass another run.")
        histories[name] = History(rows)
    return histories


def _find_history(run: Path) -> Path:
    """Return the path of the history of a run, which may be passed itself.

    Raises:
        ConfigError: If the path does not exist.
        HookbusError: If the run has no history.
    """
    if not run.is_dir():
        if not run.exists():
            raise ConfigError(f"{format_path(run)}: no such directory. Pass the work directory of a run.")
        return run
    if not (path := run / HISTORY).exists():
        if (run / STATUS).exists():
            raise HookbusError(f"{format_path(run)} has no {HISTORY}: {UNFINISHED}. Pass another run.")
        inner = next((f", such as {format_path(path.parent)}" for path in sorted(run.glob(f"*/{HISTORY}"))), "")
        raise HookbusError(
            f"{format_path(run)} has no {HISTORY}: it is not the work directory of a training. Pass that of a "
            f"run{inner}."
        )
    return path


def name_runs(runs: Sequence[Path]) -> list[str]:
    """Return a name for each run: the shortest end of its path that no other run has."""
    paths = [Path(os.path.abspath(path)).parts for path in runs]
    longest = max(map(len, paths), default=1)
    for length in range(1, longest + 1):
        names = ["/".join(parts[-length:]) for parts in paths]
        if len(set(names)) == len(set(paths)):
            return names
    return ["/".join(parts) for parts in paths]


def select(history: History, metrics: Sequence[str], run: str) -> History:
    """Return a history with the named metrics only; all of them without names.

    Args:
        history: History of a run.
        metrics: Names of metrics.
        run: Name of the run, for the message.

    Raises:
        ConfigError: If no metric has the name, or several have.
    """
    if not metrics:
        return history
    columns = [name for name in history.columns if "/" in name or name == "lr"]
    try:
        names = {resolve_metric_name(metric, columns) for metric in metrics}
    except HookbusError as error:
        raise ConfigError(f"--metric: run {run}: {error}") from None
    dropped = set(columns) - names
    return History({name: value for name, value in row.items() if name not in dropped} for row in history)


def _write_page(output: Path, charts: Charts, unit: str, names: Sequence[str]) -> None:
    title = ", ".join(names)
    content = build_page(title, [f"<h1>{escape(title)}</h1>", "<br>", build_charts(charts, unit)]).encode()
    atomic_write(output, lambda file: file.write(content))


def _write_image(output: Path, charts: Charts, unit: str, names: Sequence[str]) -> None:
    figure = _build_figure(charts, unit, ", ".join(names))
    atomic_write(output, lambda file: figure.savefig(file, format="png", dpi=144))


def _build_figure(charts: Charts, unit: str, title: str) -> Any:
    try:
        # No `pyplot`, which would choose a backend with windows.
        from matplotlib.figure import Figure
    except ImportError as error:
        raise HookbusError(
            f"--output: a PNG file requires matplotlib, which cannot be imported: {error}. Run: pip install "
            "matplotlib, or pass a file with the suffix .html."
        ) from error
    rows = -(-len(charts) // COLUMNS)
    columns = min(len(charts), COLUMNS)
    figure = Figure(figsize=(CHART_INCHES[0] * columns, CHART_INCHES[1] * rows + 0.4), layout="constrained")
    texts = [figure.suptitle(title)]
    for index, (name, curves) in enumerate(charts.items(), start=1):
        axes = figure.add_subplot(rows, columns, index)
        for label, points in curves.items():
            marker = "o" if len(points) == 1 else ""
            shown = f" {label}" if label.startswith("_") else label  # such a label has no entry in the legend
            axes.plot([x for x, _ in points], [y for _, y in points], label=shown, marker=marker)
        axes.set(xlabel=unit)
        axes.locator_params(axis="x", integer=True, min_n_ticks=1)
        texts.append(axes.set_title(name))
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        texts += axes.legend(frameon=False, fontsize="small").get_texts()
    for text in texts:
        text.set_parse_math(False)  # a dollar sign in a name is no formula
    return figure
