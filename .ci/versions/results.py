"""Results that are kept for the table, so that an interrupted `make matrix` continues where it stopped."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

from versions.environments import Environment
from versions.suite import Result

__all__ = ["PAGE", "find_commit", "load_result", "save_result"]

PAGE = Path("docs/versions.md")


def find_commit(root: Path) -> str | None:
    """Return the commit that the files are those of, the page of the table aside, or None."""
    changes = _git(root, "status", "--porcelain", "--", ".", f":(exclude){PAGE}")
    return None if changes != "" else _git(root, "rev-parse", "HEAD")


def save_result(root: Path, environment: Environment, result: Result, commit: str) -> None:
    """Keep the result of all tests in an environment, instead of an earlier one.

    Args:
        root: Repository.
        environment: Environment.
        result: Outcome of the tests.
        commit: Commit of the files when the tests began.

    Raises:
        SystemExit: If the files changed since.
    """
    if find_commit(root) != commit:
        raise SystemExit(f"{environment.name}: the files changed during the tests. Repeat the command.")
    path = _find_file(root, environment)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"commit": commit, "result": asdict(result)}, indent=2))


def load_result(root: Path, environment: Environment, commit: str) -> Result | None:
    """Return the result that was kept for this commit, if any."""
    path = _find_file(root, environment)
    kept: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"commit": None}
    return Result(**kept["result"]) if kept["commit"] == commit else None


def _find_file(root: Path, environment: Environment) -> Path:
    return root / ".venv" / "matrix" / f"{environment.name.replace(' ', '-')}.json"


def _git(root: Path, *arguments: str) -> str | None:
    """Return the output of git, or None outside of a repository."""
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None
