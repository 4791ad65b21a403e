"""The packages of this repository that are released together: the core and the plugins."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path
from typing import Any

__all__ = ["CORE", "find_bridges", "find_projects", "read_project", "run_git", "sources_of"]

CORE = "hookbus"
BRIDGES_GROUP = "hookbus.bridges"


def find_projects(root: Path) -> dict[str, Path]:
    """Return the folder of each package, relative to the repository, with the core first."""
    plugins = sorted(path.parent.relative_to(root) for path in root.glob("plugins/*/pyproject.toml"))
    return {CORE: Path(), **{folder.name: folder for folder in plugins}}


def find_bridges(root: Path) -> dict[str, Path]:
    """Return the folder of each package that connects another trainer: those with an entry point for one.

    The trainers conflict with each other, so each has an environment of its own, and no other one has any.
    """
    return {
        name: folder
        for name, folder in find_projects(root).items()
        if BRIDGES_GROUP in read_project(root / folder).get("entry-points", {})
    }


def read_project(folder: Path) -> dict[str, Any]:
    """Return the metadata that the package in a folder declares."""
    project: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    return project


def sources_of(name: str, folder: Path) -> Path:
    """Return the folder of the import package, relative to the repository."""
    return folder / name.replace("-", "_")


def run_git(root: Path, *arguments: str) -> str:
    """Return the output of a git command.

    Raises:
        SystemExit: If the command fails, with its message.
    """
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout
