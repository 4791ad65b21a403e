"""Environments with other trainers: one per trainer and version, over the environment of the tests and its torch."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from itertools import chain
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from releasing.projects import find_bridges, find_projects, read_project

from versions.bounds import CONSTRAINTS, find_lower_bound, read_pins
from versions.environments import Environment, install

__all__ = ["TRAINERS", "find_lowest", "find_newest", "find_trainers", "make_trainer", "select_bridges"]

TRAINERS = Path(".ci/trainers.txt")
"""Newest version of each trainer that the tests run with."""


def select_bridges(root: Path, name: str = "") -> list[str]:
    """Return the packages of all trainers, or the package of a trainer.

    Args:
        root: Repository.
        name: Name of the trainer as in the name of the package, such as `lightning`.

    Raises:
        SystemExit: If there is no such package, with the names of all.
    """
    names = {package.removeprefix("hookbus-"): package for package in find_bridges(root)}
    if name and name not in names:
        raise SystemExit(f"HOST: unknown trainer, got {name!r}. Choose one of {', '.join(names)}.")
    return [names[name]] if name else list(names.values())


def find_trainers(root: Path, package: str) -> list[Requirement]:
    """Return what a package of a trainer requires besides the packages of this repository.

    Of a trainer that is published under several names, each is an extra.
    """
    projects = find_projects(root)
    project = read_project(root / projects[package])
    texts = chain(project["dependencies"], *project.get("optional-dependencies", {}).values())
    return [requirement for requirement in map(Requirement, texts) if requirement.name not in projects]


def find_lowest(root: Path, package: str) -> dict[str, str]:
    """Return the lowest version of the trainer of a package."""
    trainers = find_trainers(root, package)
    return {canonicalize_name(trainer.name): str(find_lower_bound(package, trainer)) for trainer in trainers}


def find_newest(root: Path, package: str) -> dict[str, str]:
    """Return the newest version of the trainer of a package that its tests run with.

    Raises:
        SystemExit: If none is pinned.
    """
    pins, names = read_pins(root / TRAINERS), [canonicalize_name(item.name) for item in find_trainers(root, package)]
    if missing := [name for name in names if name not in pins]:
        raise SystemExit(f"{TRAINERS}: no version of {', '.join(missing)}. Add the newest one that was tested.")
    return {name: pins[name] for name in names}


def make_trainer(root: Path, package: str, versions: Mapping[str, str]) -> Environment:
    """Make an environment with a trainer and the package that connects it, over the environment of the tests.

    pip keeps the versions that are installed there, unless the trainer excludes them, and always its torch.

    Args:
        root: Repository.
        package: Package of the trainer.
        versions: Version of each distribution to install.

    Raises:
        SystemExit: If a version cannot be installed.
    """
    name = " ".join(next(iter(versions.items())))
    folder = root / ".venv" / "trainers" / name.replace(" ", "-")
    pins = [*(f"{key}=={value}" for key, value in versions.items()), f"torch=={read_pins(root / CONSTRAINTS)['torch']}"]
    source = root / find_projects(root)[package]
    wanted, installed = "\n".join([*pins, (source / "pyproject.toml").read_text()]), folder / "installed"
    environment = Environment(name, folder / "bin/python", dict(pin.split("==") for pin in pins), folder)
    if not installed.exists() or installed.read_text() != wanted:
        _fill(environment, root, ["--editable", str(source), *pins])
        installed.write_text(wanted)  # last: an interrupted installation is repeated
    return environment


def _fill(environment: Environment, root: Path, arguments: list[str]) -> None:
    shutil.rmtree(environment.folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment.folder], check=True)
    (packages,) = environment.folder.glob("lib/python3*/site-packages")
    # Not the path alone: the sources are found by the .pth files of that environment.
    shared = sysconfig.get_path("purelib")
    (packages / "tests.pth").write_text(f"import site; site.addsitedir({shared!r})\n")
    install(environment.name, environment.python, root, "--no-build-isolation", "--no-compile", *arguments)
