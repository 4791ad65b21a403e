"""Checks of the paths in a run file before anything is built: names that are too long, and files that are missing."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hookbus._run.status import read_status
from hookbus.checkpoint.load import resolve_path
from hookbus.errors import CheckpointError

MAX_NAME_BYTES = 255
MAX_PATH_BYTES = 4096 - 256
"""Limits of Linux and macOS, less a reserve for the names of the files in a directory."""

PATH_KEYS = frozenset({"path", "dir", "directory", "file", "filename", "folder"})
PATH_SUFFIXES = tuple(f"_{key}" for key in PATH_KEYS)


def find_initial_file(resume: str, load_from: str | None, work_dir: str) -> tuple[str, str] | None:
    """Return the key and the path of the file that a training starts from; None if there is none.

    Args:
        resume: "never", "auto" or the path of a checkpoint.
        load_from: Path of the initial weights. They are not loaded if a run is continued.
        work_dir: Work directory.
    """
    if resume not in ("auto", "never"):
        return "resume", resume
    continues = resume == "auto" and not find_name_problem(work_dir) and read_status(Path(work_dir))
    return None if load_from is None or continues else ("load_from", load_from)


def find_file_problem(path: str) -> str:
    """Return the problem of a file that should be a checkpoint, or "" if it exists. The content is not read."""
    if problem := find_name_problem(path):
        return problem
    try:
        resolve_path(path)
    except CheckpointError as error:
        return str(error)
    return ""


def find_name_problem(path: str) -> str:
    """Return the problem of a path that is too long for a file system, or ""."""
    # Encoded as by the system; characters that cannot be encoded are reported elsewhere.
    longest = max((len(name.encode(errors="replace")) for name in path.split(os.sep)), default=0)
    if longest > MAX_NAME_BYTES:
        return f"a name of {longest:,} bytes, but a file system allows {MAX_NAME_BYTES}. Use a shorter name."
    length = len(os.path.join(os.getcwd(), path).encode(errors="replace"))
    return f"a path of {length:,} bytes, but at most {MAX_PATH_BYTES:,} are allowed." if length > MAX_PATH_BYTES else ""


def find_settings_problems(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the key and the problem of each path in the settings of a hook that is too long.

    Args:
        settings: Settings. Paths are recognized by their keys: `path`, `out_dir`, `log_file`.
    """
    for key, value in settings.items():
        is_path = key in PATH_KEYS or key.endswith(PATH_SUFFIXES)
        if is_path and isinstance(value, str) and "://" not in value and (problem := find_name_problem(value)):
            yield key, problem
