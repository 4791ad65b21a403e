"""The runs in a directory: outcome, best metrics, duration, and the settings in which they differ."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hookbus._run.history import History
from hookbus._run.history_file import HISTORY, read_rows
from hookbus._run.recorded_settings import find_differing, read_settings
from hookbus._run.status import STATUS, StatusFile
from hookbus.errors import ConfigError, HookbusError, MetricError, format_path, suggest_names
from hookbus.metrics.direction import infer_direction
from hookbus.metrics.logged import STAGES
from hookbus.metrics.results import find_metric_names, resolve_metric_name

MAX_LEVELS = 4
"""Number of levels of directories that are searched for runs."""

RESULTS = ("val/", "test/")

COLUMNS = ("name", "outcome", "epochs", "iterations", "seconds", "started")
"""Values that every run has, by which runs are sorted."""

TITLES = {"run": "name", "time": "seconds"}
"""Titles in the table of the columns with another name."""


@dataclass
class ListedRun:
    """Run in a directory.

    Attributes:
        name: Path relative to the directory that was searched.
        outcome: Outcome, "running" or "" if it is unknown.
        epochs: Number of completed epochs.
        iterations: Number of completed iterations.
        seconds: Training time in seconds; None without a history.
        best: Best value of each result whose direction is known, else the last one, by full name.
        settings: Settings by path in which the runs differ.
        started: Time at which the run began, in ISO 8601 format; "" if it is unknown.
        problems: Messages of damaged files.
    """

    name: str
    outcome: str = ""
    epochs: int | None = None
    iterations: int | None = None
    seconds: float | None = None
    best: dict[str, float] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    started: str = ""
    problems: list[str] = field(default_factory=list)


def list_runs(directory: Path, sort: str | None = None) -> list[ListedRun]:
    """Return the training runs in a directory and its subdirectories.

    Args:
        directory: Directory to search.
        sort: Name of the value to sort by, see `sort_runs`. Default: None, for the name of the run.

    Raises:
        ConfigError: If the directory does not exist, or no run has the value to sort by.
    """
    if not directory.is_dir():
        raise ConfigError(f"{format_path(directory)}: no such directory. Pass the directory that contains the runs.")
    paths = sorted(_find_runs(directory, MAX_LEVELS))
    settings = summarize_hooks([read_settings(path) for path in paths])
    differing = find_differing(settings)
    runs = [_read_run(path, directory) for path in paths]
    for run, values in zip(runs, settings, strict=True):
        run.settings = {path: values[path] for path in differing if path in values}
    return runs if sort is None else sort_runs(runs, sort)


def summarize_hooks(settings: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the settings of runs, where a hook that not all runs have is one setting, `hooks.NAME`: true or false.

    Args:
        settings: Settings of each run, by path.
    """
    hooks = [{path.removesuffix(".type") for path in run if _is_type_of_hook(path)} for run in settings]
    recorded = [names for names, run in zip(hooks, settings, strict=True) if run]  # others have no config.yaml
    partial = {name for names in recorded for name in names if not all(name in others for others in recorded)}
    prefixes = tuple(f"{name}." for name in partial)
    return [
        {
            **{path: value for path, value in run.items() if not path.startswith(prefixes)},
            **({name: name in names for name in sorted(partial)} if run else {}),
        }
        for names, run in zip(hooks, settings, strict=True)
    ]


def _is_type_of_hook(path: str) -> bool:
    return path.startswith("hooks.") and path.endswith(".type")


def sort_runs(runs: Sequence[ListedRun], key: str) -> list[ListedRun]:
    """Return runs by the value of a column, ascending; the best run first for a metric, runs without a value last.

    Args:
        runs: Runs.
        key: Name of a column, a metric or a setting. A metric is found by the names that `monitor` accepts.

    Raises:
        ConfigError: If no run has the value, or several metrics have the name.
    """
    key = _resolve_key(runs, key)
    values = [_get_value(run, key) for run in runs]
    if runs and all(value is None for value in values):
        known = dict.fromkeys([*COLUMNS, *(name for run in runs for name in (*run.best, *run.settings))])
        raise ConfigError(f"--sort: no run has {key!r}.{suggest_names(key, known)}")
    is_descending = any(key in run.best for run in runs) and infer_direction(key) == "greater"
    pairs = [(value, run) for value, run in zip(values, runs, strict=True) if value is not None]
    is_number = all(isinstance(value, (int, float)) for value, _ in pairs)
    pairs.sort(key=lambda pair: pair[0] if is_number else str(pair[0]), reverse=is_descending)
    return [*(run for _, run in pairs), *(run for value, run in zip(values, runs, strict=True) if value is None)]


def _resolve_key(runs: Sequence[ListedRun], key: str) -> str:
    """Return the full name of a value to sort by; an unknown one unchanged.

    Raises:
        ConfigError: If several metrics have the name.
    """
    key = TITLES.get(key, key)
    metrics = dict.fromkeys(name for run in runs for name in run.best)
    if key in COLUMNS or any(key in run.settings for run in runs) or not find_metric_names(key, metrics):
        return key
    try:
        return resolve_metric_name(key, metrics)
    except MetricError as error:
        raise ConfigError(f"--sort: {error}") from None


def _get_value(run: ListedRun, key: str) -> Any:
    if key in COLUMNS:
        return getattr(run, key)
    return run.best.get(key, run.settings.get(key))


def _find_runs(directory: Path, levels: int) -> Iterator[Path]:
    """Yield the work directories of training runs; one may contain those of others."""
    if os.path.lexists(directory / STATUS):
        yield directory
    if not levels:
        return
    try:
        entries = [entry.path for entry in os.scandir(directory) if entry.is_dir(follow_symlinks=False)]
    except OSError:  # a directory that others may not read
        return
    for path in entries:
        if not os.path.basename(path).startswith("."):
            yield from _find_runs(Path(path), levels - 1)


def _read_run(path: Path, root: Path) -> ListedRun:
    status = StatusFile.read(path)
    fields = status.fields
    name = os.path.basename(os.path.abspath(path)) if path == root else path.relative_to(root).as_posix()
    run = ListedRun(name, str(fields.get("outcome", "")), fields.get("epochs_done"), fields.get("iters_done"))
    run.started = str(fields.get("started", ""))
    if status.problem:
        run.problems.append(f"{format_path(path / STATUS)}: {status.problem}.")
    rows: list[dict[str, Any]] = []
    if os.path.lexists(path / HISTORY):
        try:
            rows, problems = read_rows(path / HISTORY)
            run.problems += problems
        except HookbusError as error:
            run.problems.append(str(error))
    run.seconds = rows[-1]["seconds"] if rows else None
    best = find_best(History(rows))
    # The run knows the direction of a metric that its name does not imply.
    run.best = {**best, **_get_best(fields)} if best else _get_results(fields)
    return run


def find_best(history: History) -> dict[str, float]:
    """Return the best value of each result of validations and tests, by full name; the last one of unknown direction.

    Args:
        history: History of a run.
    """
    best: dict[str, float] = {}
    for name in history.columns:
        if name.startswith(RESULTS):
            values = [value for value in history[name] if value is not None and value == value]
            direction = infer_direction(name)
            if values:
                best[name] = values[-1] if direction is None else (max if direction == "greater" else min)(values)
    return best


def _get_results(fields: Mapping[str, Any]) -> dict[str, float]:
    """Return the best and the last results that a run without a history has recorded in its status."""
    results = {**fields.get("metrics", {}), **_get_best(fields)}
    return {name: value for name, value in results.items() if value is not None and name.partition("/")[0] in STAGES}


def _get_best(fields: Mapping[str, Any]) -> dict[str, float]:
    """Return the best results that a run has recorded in its status."""
    best = {name: entry.get("value") for name, entry in fields.get("best", {}).items()}
    return {name: value for name, value in best.items() if value is not None}
