"""The lower bounds that the packages of this repository declare, and the versions that are installed with them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from releasing.projects import find_bridges, find_projects, read_project

__all__ = ["CONSTRAINTS", "LOWEST", "find_lower_bound", "find_lower_bounds", "lock_lowest", "read_pins", "resolve"]

CONSTRAINTS = Path(".ci/constraints.txt")
LOWEST = Path(".ci/lowest.txt")
HEADER = "# The lowest version of each dependency, and what is installed with them. Written by `make lowest`.\n"
OF_ENVIRONMENTS = {"torch", "torchvision"}  # their versions have environments of their own
# torch has the version of the constraints, without the CUDA packages of the build on the package index.
OF_TORCH = re.compile(r"(nvidia-(?!ml-py)|cuda-|triton|torch(vision)?==)")


def find_lower_bounds(root: Path) -> dict[str, Version]:
    """Return the lower bound of each dependency of the core and the plugins.

    torch, torchvision and the trainers of bridges are left out. Of several lower bounds the highest is taken, since all
    packages are installed together.

    Raises:
        SystemExit: If a dependency has no lower bound.
    """
    bounds: dict[str, Version] = {}
    for name, requirement in _requirements(root):
        lower, key = find_lower_bound(name, requirement), canonicalize_name(requirement.name)
        bounds[key] = max(lower, bounds.get(key, lower))
    return {name: bounds[name] for name in sorted(bounds.keys() - OF_ENVIRONMENTS)}


def find_lower_bound(name: str, requirement: Requirement) -> Version:
    """Return the lowest version that a requirement accepts.

    Args:
        name: Package with the requirement.
        requirement: Requirement.

    Raises:
        SystemExit: If it has no lower bound.
    """
    for item in requirement.specifier:
        if item.operator in (">=", "=="):
            return Version(item.version)
    raise SystemExit(f"{name}: no lower bound, got {requirement}. Declare the lowest version that was tested.")


def _requirements(root: Path) -> Iterator[tuple[str, Requirement]]:
    projects, bridges = find_projects(root), find_bridges(root)
    for name in [name for name in projects if name not in bridges]:
        project = read_project(root / projects[name])
        optional = project.get("optional-dependencies", {}).values()
        for text in [*project["dependencies"], *(item for items in optional for item in items)]:
            requirement = Requirement(text)
            if requirement.name not in projects:
                yield name, requirement


def lock_lowest(root: Path) -> None:
    """Write `.ci/lowest.txt`: the lower bound of each dependency, and the newest versions that they allow of others."""
    group = tomllib.loads((root / "pyproject.toml").read_text())["dependency-groups"]["test"]
    tools = {canonicalize_name(Requirement(text).name) for text in group} - find_lower_bounds(root).keys()
    wanted = [f"{name}=={version}" for name, version in find_lower_bounds(root).items()]
    pins = read_pins(root / CONSTRAINTS)
    wanted += [f"{name}=={pins[name]}" for name in sorted({*tools, "torch"})]
    lines = [line for line in resolve(wanted) if not OF_TORCH.match(line)]
    (root / LOWEST).write_text("\n".join([HEADER + f"torch=={pins['torch']}", *lines]) + "\n")


def resolve(requirements: Iterable[str], *options: str) -> list[str]:
    """Return the pins of requirements and of what they need, from the package index of pip.

    Args:
        requirements: Lines of a requirements file.
        options: Options of `uv pip compile`.

    Raises:
        SystemExit: If the requirements exclude each other, with the reason.
    """
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate"]
    command += ["--python-version", "3.11", *options, "-"]
    lines = "\n".join(requirements)
    done = subprocess.run(command, input=lines, env=_index(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"uv: the requirements cannot be resolved.\n{done.stderr.strip()}")
    return done.stdout.splitlines()


def _index() -> dict[str, str]:
    # uv does not read the configuration of pip.
    command = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    url = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return {**({"UV_DEFAULT_INDEX": url} if url else {}), **os.environ}


def read_pins(path: Path) -> dict[str, str]:
    """Return the version of each distribution in a file of pins."""
    lines = (line.partition("==") for line in path.read_text().splitlines())
    return {canonicalize_name(name): version for name, equals, version in lines if equals}
