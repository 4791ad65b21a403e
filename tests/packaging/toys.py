"""Distributions of projects, and environments with wheels of the core and plugins instead of their sources."""

from __future__ import annotations

import contextlib
import importlib.metadata
import tarfile
from pathlib import Path

import hatchling.build

from tests.conftest import Environment

__all__ = ["build_sdist", "build_wheel", "remove_sources", "unpack"]


def build_sdist(project: Path, target: Path) -> Path:
    """Build the source distribution of a project."""
    with contextlib.chdir(project):  # where a build frontend calls the backend
        return target / hatchling.build.build_sdist(str(target))


def build_wheel(project: Path, target: Path) -> Path:
    """Build the wheel of a project."""
    with contextlib.chdir(project):
        return target / hatchling.build.build_wheel(str(target))


def unpack(sdist: Path, target: Path) -> Path:
    """Extract a source distribution and return its project."""
    with tarfile.open(sdist) as archive:
        archive.extractall(target, filter="data")
    return target / sdist.name.removesuffix(".tar.gz")


def remove_sources(environment: Environment) -> None:
    """Remove the link to the sources of the core, so that a wheel of it can be installed."""
    core = importlib.metadata.distribution("hookbus").files or ()
    for name in {"0.pth", *(file.parts[0] for file in core if file.parts[0] != "..")}:
        (environment.packages / name).unlink(missing_ok=True)
