"""Tests of the lowest versions that an installer chooses: they are those that the packages declare, all together."""

from __future__ import annotations

import pytest
from packaging.version import Version
from releasing.projects import find_bridges, find_projects, read_project
from versions.bounds import find_lower_bounds, resolve

from tests.pages import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def find_sources() -> list[str]:
    """Return a requirement of each package with all its extras, from its folder. Other trainers have own versions."""
    folders = {name: folder for name, folder in find_projects(ROOT).items() if name not in find_bridges(ROOT)}
    sources = []
    for name, folder in folders.items():
        extras = ",".join(read_project(ROOT / folder).get("optional-dependencies", {}))
        sources.append(f"{name}[{extras}] @ {(ROOT / folder).as_uri()}")
    return sources


def test_lowest_versions_of_all_packages_and_extras_resolve_together() -> None:
    lines = resolve(find_sources(), "--resolution", "lowest-direct")
    pins = {name: Version(version) for name, _, version in (line.partition("==") for line in lines) if version}

    bounds = find_lower_bounds(ROOT)
    assert {name: pins[name] for name in bounds} == bounds
    assert (pins["torch"], pins["torchvision"]) == (Version("2.6.0"), Version("0.21.0"))


def test_requirements_that_exclude_each_other_are_refused_with_the_reason() -> None:
    with pytest.raises(SystemExit, match="cannot be resolved(?s:.*)pluggy"):
        resolve(["pluggy>=1.6", "pluggy<1.5"])
