"""Paths of the log file of a hook."""

from __future__ import annotations

import os
import re
from itertools import takewhile
from pathlib import Path

from hookbus import Run
from hookbus.errors import HookError
from hookbus.writers import iter_numbered_paths, resolve_output_path


def get_log_path(run: Run, hook: str, path: Path | None, default: str) -> Path:
    """Return the path of a log file.

    Args:
        run: Active run.
        hook: Instance name of the hook.
        path: Setting `path` of the hook; None if it is not set.
        default: Name of the file in the log directory of the run if `path` is not set.

    Raises:
        ConfigError: If a validation or test has no work directory and the path is relative.
        HookError: If it has no work directory and the hook no path.
    """
    if path is not None:
        return resolve_output_path(run, hook, "path", path)
    directory = run.get("logs_dir")
    if directory is None:
        raise HookError(
            f"The run has no work directory for {default}, so no rows are written. Set `work_dir` of the run or "
            "`path` of this hook."
        )
    return Path(directory) / default


def resolve_log_path(run: Run, path: Path | None, default: str) -> Path:
    """Return the absolute path of a log file for a comparison, also without a work directory."""
    # Relative paths are compared with each other if the run will have no work directory.
    relative = Path(default) if path is None else Path(os.path.expanduser(path))
    return (relative if run.get("experiment_dir") is None else get_log_path(run, "", path, default)).resolve()


def list_candidates(path: Path, name: str) -> list[Path]:
    """Return the existing files that may be the log: that of the checkpoint, then `path` and its numbered siblings."""
    existing = list(takewhile(os.path.lexists, iter_numbered_paths(path)))
    # Another name belongs to a log with another `path`, for example that of the run of which the directory is a copy.
    is_sibling = re.fullmatch(rf"{re.escape(path.stem)}-\d+{re.escape(path.suffix)}", name)
    return [path.with_name(name), *existing] if is_sibling else existing
