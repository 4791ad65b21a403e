"""Tests of the environments with other trainers, of packages in a folder and of those of this repository."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from packaging.version import Version
from releasing.projects import find_bridges
from versions.bounds import find_lower_bound, read_pins
from versions.trainers import TRAINERS, find_lowest, find_newest, find_trainers, select_bridges

ROOT = Path(__file__).parents[2]
BRIDGE = """[project]
name = "hookbus-acme"
dependencies = ["hookbus>=0.1,<0.2", "Acme_Trainer>=2.1,<4"]

[project.entry-points."hookbus.bridges"]
"acme.Trainer" = "hookbus_acme.capabilities:TRAINER"
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in (("hookbus-acme", BRIDGE), ("hookbus-hooks", BRIDGE.partition("\n\n")[0])):
        (tmp_path / "plugins" / name).mkdir(parents=True)
        (tmp_path / "plugins" / name / "pyproject.toml").write_text(text)
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "hookbus"\n')
    (tmp_path / ".ci").mkdir()
    (tmp_path / TRAINERS).write_text("acme-trainer==3.9\n")
    return tmp_path


def test_package_with_an_entry_point_for_a_trainer_is_selected(root: Path) -> None:
    assert find_bridges(root) == {"hookbus-acme": Path("plugins/hookbus-acme")}
    assert select_bridges(root) == select_bridges(root, "acme") == ["hookbus-acme"]


def test_unknown_trainer_is_refused_with_the_names_of_all(root: Path) -> None:
    with pytest.raises(SystemExit, match=re.escape("HOST: unknown trainer, got 'hooks'. Choose one of acme.")):
        select_bridges(root, "hooks")


def test_lowest_version_is_declared_and_the_newest_is_pinned(root: Path) -> None:
    assert find_lowest(root, "hookbus-acme") == {"acme-trainer": "2.1"}
    assert find_newest(root, "hookbus-acme") == {"acme-trainer": "3.9"}


def test_each_name_of_a_trainer_is_installed(root: Path) -> None:
    path = root / "plugins/hookbus-acme/pyproject.toml"
    extras = '[project.optional-dependencies]\nclassic = ["acme-classic>=2"]\n'
    path.write_text(path.read_text() + extras)

    assert find_lowest(root, "hookbus-acme") == {"acme-trainer": "2.1", "acme-classic": "2"}


def test_trainer_without_a_newest_version_is_refused(root: Path) -> None:
    (root / TRAINERS).write_text("other==1\n")
    with pytest.raises(SystemExit, match=r"trainers\.txt: no version of acme-trainer\. Add the newest one that was"):
        find_newest(root, "hookbus-acme")


def test_makefile_installs_the_packages_of_trainers_without_dependencies() -> None:
    pattern = re.search(r"grep --files-with-matches '(.+)'", (ROOT / "Makefile").read_text())
    assert pattern is not None
    matching = [path.parent.name for path in ROOT.glob("plugins/*/pyproject.toml") if pattern[1] in path.read_text()]
    assert sorted(matching) == sorted(find_bridges(ROOT))


@pytest.mark.parametrize("package", find_bridges(ROOT))
def test_pinned_version_is_in_the_range_of_the_package(package: str) -> None:
    pins = read_pins(ROOT / TRAINERS)
    trainers = find_trainers(ROOT, package)
    assert trainers, "declare the trainer as a dependency or an extra: its lowest and its newest version are tested"
    for trainer in trainers:
        assert trainer.specifier.contains(pins[trainer.name])
        assert find_lower_bound(package, trainer) <= Version(pins[trainer.name])
