"""Tests of the content of the wheels."""

import tomllib
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path

import pytest

from tests.packaging.toys import build_wheel
from tests.pages import ROOT

PROJECTS = [ROOT, *sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))]

pytestmark = pytest.mark.slow


@pytest.fixture(params=PROJECTS, ids=lambda path: "hookbus" if path == ROOT else path.name)
def wheel(dist: Path, request: pytest.FixtureRequest) -> Iterator[tuple[Path, zipfile.ZipFile]]:
    """Yield each project with its wheel."""
    name = "hookbus" if request.param == ROOT else request.param.name.replace("-", "_")
    (path,) = dist.glob(f"{name}-*.whl")
    with zipfile.ZipFile(path) as opened:
        yield request.param, opened


def test_wheel_contains_only_its_package(wheel: tuple[Path, zipfile.ZipFile]) -> None:
    project, opened = wheel
    name = "hookbus" if project == ROOT else project.name.replace("-", "_")
    tops = {entry.partition("/")[0] for entry in opened.namelist()}

    assert {top for top in tops if not top.endswith(".dist-info")} == {name}
    assert f"{name}/py.typed" in opened.namelist()
    assert not [entry for entry in opened.namelist() if "test" in Path(entry).name and name != "hookbus"]


def test_wheel_contains_all_modules(wheel: tuple[Path, zipfile.ZipFile]) -> None:
    project, opened = wheel
    package = project / project.name.replace("-", "_") if project != ROOT else ROOT / "hookbus"
    modules = {path.relative_to(package.parent).as_posix() for path in package.rglob("*.py")}

    assert modules - set(opened.namelist()) == set()


def test_metadata_is_complete(wheel: tuple[Path, zipfile.ZipFile]) -> None:
    project, opened = wheel
    (entry,) = [name for name in opened.namelist() if name.endswith(".dist-info/METADATA")]
    metadata = Parser().parsestr(opened.read(entry).decode())

    assert metadata["Version"] == "0.1.0"
    assert metadata["License-Expression"] == "MIT"
    assert metadata.get_all("License-File") == ["LICENSE"]
    assert opened.read(entry.replace("METADATA", "licenses/LICENSE")) == (ROOT / "LICENSE").read_bytes()
    assert metadata["Requires-Python"] == ">=3.11"
    assert len(str(metadata.get_payload())) > 200, "the README is the page on the index"
    if project != ROOT:
        assert [name for name in metadata.get_all("Requires-Dist", []) if name.replace(" ", "") == "hookbus<0.2,>=0.1"]


def test_source_distribution_builds_the_same_wheel(wheel: tuple[Path, zipfile.ZipFile], tmp_path: Path) -> None:
    project, opened = wheel

    with zipfile.ZipFile(build_wheel(project, tmp_path)) as direct:
        assert {name: direct.read(name) for name in direct.namelist()} == {
            name: opened.read(name) for name in opened.namelist()
        }


def test_versions_are_equal() -> None:
    import hookbus

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == hookbus.__version__


def test_every_plugin_has_readme_changelog_and_tests() -> None:
    for project in PROJECTS[1:]:
        missing = [name for name in ("README.md", "CHANGELOG.md") if not (project / name).is_file()]
        assert not missing, f"{project.name} : missing files {', '.join(missing)}"
        assert list(project.glob("tests/test_*.py")), f"{project.name} has no tests"
