"""The packages of this repository that are released together: the core and the plugins."""

from __future__ import annotations

import subprocess
from pathlib import Path

__all__ = ["CORE", "find_projects", "run_git", "sources_of"]

CORE = "hookbus"


def find_projects(root: Path) -> dict[str, Path]:
    """Return the folder of each package, relative to the repository, with the core first."""
    plugins = sorted(path.parent.relative_to(root) for path in root.glob("plugins/*/pyproject.toml"))
    return {CORE: Path(), **{folder.name: folder for folder in plugins}}


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
