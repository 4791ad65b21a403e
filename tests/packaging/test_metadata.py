"""Tests of the metadata that the packages declare for an index."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from releasing.projects import CORE, find_bridges, find_projects

from tests.pages import ROOT

FOLDERS = {name: ROOT / folder for name, folder in find_projects(ROOT).items()}
EQUAL = ("version", "readme", "license", "license-files", "requires-python", "classifiers", "urls")


def read_project(folder: Path) -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    return project


@pytest.mark.parametrize("name", FOLDERS)
def test_packages_declare_the_same_license_versions_and_addresses(name: str) -> None:
    project, core = read_project(FOLDERS[name]), read_project(ROOT)

    assert project["name"] == name
    assert {key: project.get(key) for key in EQUAL} == {key: core[key] for key in EQUAL}
    assert (FOLDERS[name] / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    assert {"pytorch", "training"} | ({"hookbus"} if name != CORE else set()) < set(project["keywords"])
    assert len(project["keywords"]) == len(set(project["keywords"]))


def test_license_is_an_expression_without_a_classifier() -> None:
    core = read_project(ROOT)
    assert (core["license"], core["license-files"]) == ("MIT", ["LICENSE"])
    assert not [classifier for classifier in core["classifiers"] if classifier.startswith("License")]


def test_extras_contain_every_package_of_the_repository() -> None:
    extras = read_project(ROOT)["optional-dependencies"]
    named = {requirement.partition(">=")[0].partition("[")[0] for name in extras for requirement in extras[name]}

    assert named == {*FOLDERS, "pytest"} - find_bridges(ROOT).keys()  # a trainer needs an environment of its own
