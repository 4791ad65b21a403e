"""Environments with wheels of the core and of other projects, instead of their sources."""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.conftest import Environment
from tests.pages import ROOT

__all__ = ["install_wheels"]


def install_wheels(
    environment: Environment, projects: Iterable[Path], wheels: Path, change_core: Callable[[Path], None] | None = None
) -> None:
    """Build wheels of the core and of projects, and install them.

    Args:
        environment: Environment, whose link to the sources of the core is removed.
        projects: Folders with a `pyproject.toml`.
        wheels: Empty folder for the wheels.
        change_core: Function that changes a copy of the core before its wheel is built. Default: none.
    """
    core = importlib.metadata.distribution("hookbus").files or ()
    for name in {"0.pth", *(file.parts[0] for file in core if file.parts[0] != "..")}:
        (environment.packages / name).unlink(missing_ok=True)
    for project in (ROOT, *projects):
        copy = shutil.copytree(project, wheels / "source" / project.name, ignore=_ignored_names)
        if project == ROOT and change_core is not None:
            change_core(copy)
        command = ["-m", "build", "--wheel", "--no-isolation", "--outdir", str(wheels), str(copy)]
        subprocess.run([sys.executable, *command], check=True, capture_output=True, text=True)
    environment.install(*wheels.glob("*.whl"))


def _ignored_names(directory: str, names: list[str]) -> set[str]:
    """Return the names in a directory that are not sources."""
    left_by_runs = {"runs", "dist"} if Path(directory, "pyproject.toml").exists() else set()
    return {name for name in names if name.startswith(".") or name in {"__pycache__", *left_by_runs}}
