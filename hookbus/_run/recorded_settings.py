"""Settings that runs have recorded in their work directories, and those in which several runs differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hookbus._run.recorded_run import CONFIG
from hookbus._utils.files import read_regular_file

MAX_CONFIG_BYTES = 1 << 20
IGNORED = frozenset({"work_dir", "experiment_dir", "resume", "run_name"})
"""Settings in which runs always differ, or that do not change the training."""


def read_settings(directory: Path) -> dict[str, Any]:
    """Return the settings that a run has recorded in `config.yaml`, by path; {} if it has none or the file is damaged.

    Args:
        directory: Work directory of the run.
    """
    return flatten_settings(read_config(directory))


def read_config(directory: Path) -> dict[str, Any]:
    """Return the content of the `config.yaml` of a run; {} if there is none or the file is damaged.

    Args:
        directory: Work directory of the run.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        content = YAML(typ="safe", pure=True).load(read_regular_file(directory / CONFIG, MAX_CONFIG_BYTES))
    except (OSError, ValueError, YAMLError):
        return {}
    return dict(content) if isinstance(content, Mapping) else {}


def flatten_settings(value: Any, path: str = "") -> dict[str, Any]:
    """Return the values of nested mappings and lists by path: `training.epochs`, `hooks.ema.momentum`.

    The items of a list are named by their `name` or `type`, else numbered.

    Args:
        value: Nested mappings, lists and values.
        path: Path of the value. Default: "", for the root.
    """
    if isinstance(value, Mapping) and value:
        items = [(str(name), item) for name, item in value.items()]
    elif isinstance(value, list) and any(isinstance(item, (Mapping, list)) for item in value):
        items = [(_get_name(item, index), item) for index, item in enumerate(value)]
    else:
        return {path: value} if path else {}
    flat: dict[str, Any] = {}
    for name, item in items:
        flat |= flatten_settings(item, f"{path}.{name}" if path else name)
    return flat


def find_differing(settings: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the paths whose values differ between runs, in the order of the runs.

    Args:
        settings: Settings of each run by path, see `flatten_settings`. A run without settings is not compared.
    """
    runs = [run for run in settings if run]
    paths = dict.fromkeys(path for run in runs for path in run)
    return [
        path
        for path in paths
        if path not in IGNORED and any(repr(run.get(path)) != repr(runs[0].get(path)) for run in runs[1:])
    ]


def _get_name(item: Any, index: int) -> str:
    names = (item.get("name"), item.get("type")) if isinstance(item, Mapping) else ()
    return next((str(name) for name in names if name), str(index))
