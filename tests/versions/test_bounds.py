"""Tests of the lower bounds, against packages in a folder and against those of this repository."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.version import Version
from versions.bounds import find_lower_bounds

ROOT = Path(__file__).parents[2]


def write_project(folder: Path, name: str, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(f'[project]\nname = "{name}"\n{text}')


def test_highest_lower_bound_of_all_packages_is_taken(tmp_path: Path) -> None:
    write_project(tmp_path, "hookbus", 'dependencies = ["torch>=2.6", "Ruamel.yaml>=0.18.6", "rich>=13.9,<16"]')
    extras = '[project.optional-dependencies]\nplots = ["rich>=14.1", "matplotlib>=3.9"]'
    write_project(tmp_path / "plugins/hookbus-a", "hookbus-a", f'dependencies = ["hookbus>=0.1"]\n{extras}')

    bounds = {name: str(version) for name, version in find_lower_bounds(tmp_path).items()}
    assert bounds == {"matplotlib": "3.9", "rich": "14.1", "ruamel-yaml": "0.18.6"}


def test_dependency_without_a_lower_bound_is_refused(tmp_path: Path) -> None:
    write_project(tmp_path, "hookbus", 'dependencies = ["rich<16"]')

    with pytest.raises(SystemExit, match="hookbus: no lower bound, got rich<16"):
        find_lower_bounds(tmp_path)


def test_pinned_versions_are_the_lower_bounds_of_the_packages() -> None:
    pins = dict(line.split("==") for line in (ROOT / ".ci/lowest.txt").read_text().splitlines() if "==" in line)

    for name, version in find_lower_bounds(ROOT).items():
        assert Version(pins[name]) == version, name
