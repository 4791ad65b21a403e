"""Environments in which the tests run: another torch, another Python, or the lowest version of each dependency."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from releasing.projects import find_bridges, find_projects

from versions.bounds import CONSTRAINTS, LOWEST, find_lower_bounds, read_pins

__all__ = ["Environment", "install", "make_lowest", "make_python", "make_torch"]

RELEASE = re.compile(r"\d+(\.\d+)+")

PACKAGES = "site-packages"
"""Name of the folder of another torch: errors from installed packages are reported without their location."""


@dataclass(frozen=True)
class Environment:
    """An environment of the tests.

    Attributes:
        name: Name in the table.
        python: Interpreter.
        expected: Version of each distribution that has to run, and of "python".
        folder: Folder to remove if something else runs.
        variables: Environment variables to add.
    """

    name: str
    python: Path
    expected: Mapping[str, str]
    folder: Path
    variables: Mapping[str, str] = field(default_factory=dict)


def make_torch(root: Path, version: str) -> Environment:
    """Put a version of torch over the environment of the tests, unless it is the one that is installed there.

    The folder comes first on the path. It holds the dependencies of this torch as well: the constraints do not apply,
    because they would replace the requested version silently.

    Raises:
        SystemExit: If it is not a version, or cannot be installed.
    """
    _check_release("TORCH", version, "2.6.0")
    name, python, venv = f"torch {version}", Path(sys.executable), root / ".venv"
    if version == read_pins(root / CONSTRAINTS)["torch"]:
        return Environment(name, python, {"torch": version}, venv)
    folder = venv / f"torch-{version}"
    if not folder.is_dir():
        pending = venv / f"torch-{version}.pending"  # renamed last: an interrupted installation is repeated
        shutil.rmtree(pending, ignore_errors=True)
        install(name, python, root, "--no-compile", "--target", str(pending / PACKAGES), f"torch=={version}")
        pending.rename(folder)
    path = os.pathsep.join(filter(None, [str(folder / PACKAGES), os.environ.get("PYTHONPATH")]))
    return Environment(name, python, {"torch": version}, folder, {"PYTHONPATH": path})


def make_python(root: Path, version: str) -> Environment:
    """Make an environment with another Python and the tested version of each dependency.

    Raises:
        SystemExit: If it is not a version, or no interpreter has it.
    """
    _check_release("PYTHON", version, "3.13")
    name, folder = f"Python {version}", root / ".venv" / f"python-{version}"
    python = _make_venv(name, folder, _find_python(version), CONSTRAINTS, root)
    torch = read_pins(root / CONSTRAINTS)["torch"]
    return Environment(name, python, {"python": version, "torch": torch}, folder)


def make_lowest(root: Path) -> Environment:
    """Make an environment with the lowest version of each dependency that the packages declare, torch aside."""
    name, folder = "lowest versions", root / ".venv" / "lowest"
    bounds = {distribution: str(version) for distribution, version in find_lower_bounds(root).items()}
    torch = read_pins(root / LOWEST)["torch"]
    python = _make_venv(name, folder, Path(sys.executable), LOWEST, root)
    return Environment(name, python, {**bounds, "torch": torch}, folder)


def _check_release(variable: str, version: str, example: str) -> None:
    if not RELEASE.fullmatch(version):
        raise SystemExit(f"{variable}: invalid version, got {version!r}. Set it, for example {variable}={example}.")


def _make_venv(name: str, folder: Path, interpreter: Path, pins: Path, root: Path) -> Path:
    """Make an environment, or install again what a change of the pins or of a project requires."""
    projects, bridges = find_projects(root), find_bridges(root)
    files = [root / pins, *(root / project / "pyproject.toml" for project in projects.values())]
    wanted = "".join(path.read_text() for path in files)
    python, installed = folder / "bin" / "python", folder / "installed"
    if installed.exists() and installed.read_text() == wanted:
        return python
    subprocess.run([interpreter, "-m", "venv", folder], check=True)
    install(name, python, root, "--constraint", str(CONSTRAINTS), "pip", "hatchling", "editables")
    sources = _format_sources(projects[package] for package in projects if package not in bridges)
    install(name, python, root, "--no-build-isolation", "--constraint", str(pins), *sources, "--group", "test")
    install(name, python, root, "--no-build-isolation", "--no-deps", *_format_sources(bridges.values()))
    installed.write_text(wanted)  # last: an interrupted installation is repeated
    return python


def _format_sources(folders: Iterable[Path]) -> list[str]:
    return [word for folder in folders for word in ("--editable", f"./{folder}")]


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


def install(name: str, python: Path, root: Path, *arguments: str) -> None:
    """Run `pip install` in the folder of the repository.

    Args:
        name: Name of the environment, for the message.
        python: Interpreter of the environment.
        root: Repository.
        arguments: Arguments of the command.

    Raises:
        SystemExit: If it fails, with the first error of pip.
    """
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", *arguments]
    done = subprocess.run(command, cwd=root, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        errors = (line for line in done.stderr.splitlines() if line.startswith("ERROR: "))
        error = next(errors, f"exit status {done.returncode}").rstrip(".")
        raise SystemExit(f"{name}: pip failed, got {error}. Choose versions that the package index has.")
