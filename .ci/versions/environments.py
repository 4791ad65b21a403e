"""Environments in which the tests run: another torch, another Python, or the lowest version of each dependency."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from versions.bounds import CONSTRAINTS, LOWEST, find_lower_bounds, read_pins

__all__ = ["Environment", "make_lowest", "make_python", "make_torch"]


@dataclass(frozen=True)
class Environment:
    """An environment of the tests.

    Attributes:
        name: Name in the table.
        python: Interpreter.
        expected: Version of each distribution that has to run, and of "python".
        variables: Environment variables to add.
    """

    name: str
    python: Path
    expected: Mapping[str, str]
    variables: Mapping[str, str] = field(default_factory=dict)


def make_torch(root: Path, version: str) -> Environment:
    """Put a version of torch over the environment of the tests.

    The folder comes first on the path, so that everything else keeps its version. It holds the dependencies of this
    torch as well: the constraints do not apply, because they would replace the requested version silently.
    """
    folder = root / ".venv" / f"torch-{version}"
    if not (folder / "torch").is_dir():
        _pip(Path(sys.executable), "--target", str(folder), f"torch=={version}")
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    return Environment(f"torch {version}", Path(sys.executable), {"torch": version}, {"PYTHONPATH": path})


def make_python(root: Path, version: str) -> Environment:
    """Make an environment with another Python and the tested version of each dependency."""
    python = _make_venv(
        root / ".venv" / f"python-{version}", _find_python(version), read_pins(root / CONSTRAINTS), root
    )
    return Environment(f"Python {version}", python, {"python": version})


def make_lowest(root: Path) -> Environment:
    """Make an environment with the lowest version of each dependency that the packages declare, torch aside."""
    bounds = {name: str(version) for name, version in find_lower_bounds(root).items()}
    python = _make_venv(root / ".venv" / "lowest", Path(sys.executable), read_pins(root / LOWEST), root)
    return Environment("lowest versions", python, bounds)


def _make_venv(folder: Path, interpreter: Path, pins: Mapping[str, str], root: Path) -> Path:
    python = folder / "bin" / "python"
    constraints = folder / "constraints.txt"
    text = "".join(f"{name}=={version}\n" for name, version in pins.items())
    if constraints.exists() and constraints.read_text() == text:
        return python
    subprocess.run([interpreter, "-m", "venv", "--clear", folder], check=True)
    pending = folder / "constraints.pending"  # renamed last: an interrupted installation is repeated
    pending.write_text(text)
    _pip(python, "--constraint", str(root / CONSTRAINTS), "pip", "hatchling", "editables")
    plugins = sorted(path.parent for path in root.glob("plugins/*/pyproject.toml"))
    sources = [word for path in (root, *plugins) for word in ("--editable", str(path))]
    _pip(python, "--no-build-isolation", "--constraint", str(pending), *sources, "--group", "test")
    pending.rename(constraints)
    return python


def _find_python(version: str) -> Path:
    interpreter = shutil.which(f"python{version}")
    if interpreter and _runs(interpreter):
        return Path(interpreter)
    if pyenv := shutil.which("pyenv"):
        prefix = subprocess.run([pyenv, "prefix", version], capture_output=True, text=True, check=False)
        if prefix.returncode == 0:
            return Path(prefix.stdout.strip()) / "bin" / "python"
    raise SystemExit(f"PYTHON: no interpreter, got {version!r}. Install python{version} or make it known to pyenv.")


def _runs(python: str) -> bool:
    # A shim of pyenv exists for each version, and fails for those that are not selected.
    return subprocess.run([python, "--version"], capture_output=True, check=False).returncode == 0


def _pip(python: Path, *arguments: str) -> None:
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", *arguments]
    subprocess.run(command, check=True)
