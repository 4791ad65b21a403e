"""Paths in settings of hooks: relative output paths are below the work directory of the run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol

from hookbus.errors import ConfigError


class ProvidesServices(Protocol):
    """A run."""

    def get(self, name: str, default: Any = None) -> Any:
        """Return a service."""


def resolve_output_path(
    run: ProvidesServices, hook: str, setting: str, value: str | os.PathLike[str], *, parent: str = "experiment_dir"
) -> Path:
    """Return the path of an output that a setting of a hook contains.

    Args:
        run: Active run.
        hook: Instance name of the hook.
        setting: Name of the setting.
        value: Value of the setting: an absolute path, which is returned unchanged, or a path relative to `parent`. `~`
            is the home directory.
        parent: Service with the directory of relative paths, the work directory or one of its subdirectories. Default:
            the work directory.

    Raises:
        ConfigError: If the value is a relative path and the run has no work directory.
    """
    path = Path(os.path.expanduser(value))
    if path.is_absolute():
        return path
    directory = run.get(parent)
    if directory is None:
        raise ConfigError([f"hook {hook!r}: {find_path_problem(setting, value)}"])
    return Path(directory) / path


def find_path_problem(setting: str, value: str | os.PathLike[str]) -> str:
    """Return why an output path cannot be used in a run without a work directory; "" if it can.

    Args:
        setting: Name of the setting.
        value: Value of the setting.
    """
    if Path(os.path.expanduser(value)).is_absolute():
        return ""
    return (
        f"{setting}: expected an absolute path in a run without a work directory, got {value}. Set `work_dir`, or set "
        f"`{setting}` to an absolute path."
    )
