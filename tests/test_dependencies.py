"""Tests of the dependencies that the core and the plugins declare: ranges between them, upper bounds and extras."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from itertools import chain
from typing import Any

from packaging.requirements import Requirement
from packaging.version import Version
from releasing.projects import find_bridges, find_projects

from hookbus.bridge.discovery import PACKAGES as BRIDGE_PACKAGES
from tests.pages import ROOT

PROJECTS = {name: ROOT / folder / "pyproject.toml" for name, folder in find_projects(ROOT).items()}
PLUGINS = PROJECTS.keys() - {"hookbus"}
BRIDGES = find_bridges(ROOT).keys()


def load_project(name: str) -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads(PROJECTS[name].read_text())["project"]
    return project


def find_requirements(name: str) -> list[Requirement]:
    project = load_project(name)
    extras = project.get("optional-dependencies", {}).values()
    return [Requirement(text) for text in chain(project["dependencies"], *extras)]


def find_capped(name: str) -> list[Requirement]:
    """Return the requirements of other projects that exclude a newer version."""
    operators = {"<", "<=", "==", "~=", "!=", "==="}
    return [
        requirement
        for requirement in find_requirements(name)
        if requirement.name not in PROJECTS and operators & {item.operator for item in requirement.specifier}
    ]


def expand_extra(extra: str) -> Iterator[str]:
    """Yield the names of the packages that an extra of the core installs."""
    for requirement in map(Requirement, load_project("hookbus")["optional-dependencies"][extra]):
        if requirement.name == "hookbus":
            yield from chain.from_iterable(map(expand_extra, sorted(requirement.extras)))
        else:
            yield requirement.name


def test_packages_require_each_other_with_the_same_minor_version() -> None:
    version = Version(load_project("hookbus")["version"])
    expected = Requirement(f"x>={version.major}.{version.minor},<{version.major}.{version.minor + 1}").specifier

    own = {(name, r.name): r.specifier for name in PROJECTS for r in find_requirements(name) if r.name in PLUGINS}
    core = {(name, r.name): r.specifier for name in PLUGINS for r in find_requirements(name) if r.name == "hookbus"}
    assert {name for name, _ in core} == PLUGINS
    assert [pair for pair, specifier in {**own, **core}.items() if specifier != expected] == []


def test_upper_bound_of_another_project_has_a_reason_beside_it() -> None:
    for name, path in PROJECTS.items():
        for requirement in find_capped(name):
            (line,) = [line for line in path.read_text().splitlines() if f'"{requirement.name}>=' in line]
            assert "# " in line, f"{name}: no reason beside {requirement}"


def test_documentation_names_the_dependencies_with_an_upper_bound() -> None:
    capped = sorted({requirement.name for name in PROJECTS if name not in BRIDGES for requirement in find_capped(name)})
    page = " ".join((ROOT / "docs/versions.md").read_text().split())
    assert f"There are upper bounds for {' and '.join(capped)} only" in page


def test_extra_all_installs_every_plugin_but_no_other_trainer() -> None:
    assert set(expand_extra("all")) == PLUGINS - BRIDGES


def test_extra_standard_installs_the_hooks_of_most_trainings() -> None:
    kinds = ["checkpoint", "early-stopping", "ema", "eval", "logger", "timer"]
    assert sorted(expand_extra("standard")) == [f"hookbus-{kind}" for kind in kinds]


def test_error_for_an_unknown_trainer_names_every_package_that_connects_one() -> None:
    assert set(BRIDGE_PACKAGES.values()) == BRIDGES


def test_extras_of_plugins_that_the_core_names_exist() -> None:
    for requirement in find_requirements("hookbus"):
        if requirement.name in PLUGINS:
            available = load_project(requirement.name).get("optional-dependencies", {})
            assert requirement.extras <= available.keys(), requirement
