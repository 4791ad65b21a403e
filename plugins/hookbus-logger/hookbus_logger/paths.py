"""Paths of the log file of a hook."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path

from hookbus import Run
from hookbus.errors import HookError, format_path
from hookbus.writers import is_plain_file, iter_numbered_paths, resolve_output_path


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


def find_log(
    run: Run, path: Path, name: str, current: Path | None, is_of_checkpoint: Callable[[Path], bool]
) -> Path | None:
    """Return the existing log that a run continues; None if there is none.

    Args:
        run: Active run.
        path: Requested path.
        name: Name of the log in the checkpoint; "" if there is none.
        current: File that this process has written for the run; None if there is none.
        is_of_checkpoint: Whether a regular file is the log of the checkpoint, according to its content.
    """
    for candidate in _list_candidates(path, name):
        if is_plain_file(candidate) and (
            candidate == current or is_of_checkpoint(candidate) or run.register_output(candidate)
        ):
            return candidate
    return None


def register_new_log(run: Run, path: Path, remedy: str) -> Path:
    """Return the path of a new log of a run: `path`, or a numbered name with a warning if a foreign file has the name.

    Args:
        run: Active run.
        path: Requested path.
        remedy: What to do instead, for the warning.
    """
    log = next(name for name in iter_numbered_paths(path) if not os.path.lexists(name))
    run.register_output(log)
    if log != path:
        run.logger.warning(
            "%s is not a log of this run and is not changed; the rows are written to %s. Move the file, %s.",
            format_path(path),
            log.name,
            remedy,
        )
    return log


def _list_candidates(path: Path, name: str) -> list[Path]:
    """Return the existing files that may be the log: that of the checkpoint, then `path` and its numbered siblings."""
    existing = list(takewhile(os.path.lexists, iter_numbered_paths(path)))
    # Another name belongs to a log with another `path`, for example that of the run of which the directory is a copy.
    is_sibling = re.fullmatch(rf"{re.escape(path.stem)}-\d+{re.escape(path.suffix)}", name)
    return [path.with_name(name), *existing] if is_sibling else existing
