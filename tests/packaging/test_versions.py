"""Every plugin package with a core of the next minor version: installed, found, and refused with both versions."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import hookbus
from tests.conftest import Environment
from tests.packaging.toys import build_wheel, remove_sources, unpack
from tests.pages import ROOT

PLUGINS = sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))
GROUPS = ("hookbus.hooks", "hookbus.models", "hookbus.datasets", "hookbus.bridges")
NEXT_MINOR = f"{Version(hookbus.__version__).major}.{Version(hookbus.__version__).minor + 1}.0"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def newer_core(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    environment = Environment(tmp_path_factory.mktemp("newer_core"))
    remove_sources(environment)
    (sdist,) = dist.glob("hookbus-*.tar.gz")
    core = unpack(sdist, tmp_path_factory.mktemp("core"))
    raise_version(core)
    environment.install(build_wheel(core, tmp_path_factory.mktemp("wheel")), *dist.glob("hookbus_*.whl"))
    return environment


def raise_version(core: Path) -> None:
    """Change the version of a copy of the core."""
    for name, key in (("pyproject.toml", "version"), ("hookbus/__init__.py", "__version__")):
        text, count = re.subn(rf'^{key} = ".*"$', f'{key} = "{NEXT_MINOR}"', (core / name).read_text(), flags=re.M)
        assert count == 1
        (core / name).write_text(text)


def build_messages() -> dict[str, str]:
    """Return the expected message of each plugin package, with its version and its requirement."""
    projects = [tomllib.loads((plugin / "pyproject.toml").read_text())["project"] for plugin in PLUGINS]
    messages = {}
    for project in projects:
        (requirement,) = [r for r in map(Requirement, project["dependencies"]) if r.name == "hookbus"]
        messages[project["name"]] = (
            f"{project['name']} {project['version']} requires {requirement}, but hookbus {NEXT_MINOR} is installed. "
            f"Run: pip install --upgrade hookbus {project['name']}"
        )
    return messages


def test_each_entry_point_is_refused_with_both_versions(newer_core: Environment) -> None:
    refused = newer_core.answer(
        f"""
        from hookbus.discovery import list_entries, load_entry
        from hookbus.errors import PluginVersionError

        answer = []
        for plugin in [plugin for group in {GROUPS} for plugin in list_entries(group)]:
            try:
                load_entry(plugin)
            except PluginVersionError as error:
                answer.append([plugin.package, str(error)])
            else:
                answer.append([plugin.package, f"{{plugin.name}} was loaded"])
        """
    )

    assert {(package, text) for package, text in refused} == set(build_messages().items())


def test_doctor_and_training_show_the_message(newer_core: Environment) -> None:
    reports = json.loads(newer_core.hookbus("doctor", "--json").stdout)
    messages = build_messages()
    assert len(reports) > len(PLUGINS)
    assert {report["problem"] for report in reports} <= set(messages.values())

    (newer_core.path / "run.yaml").write_text("model: {type: mlp}\ndataset: {type: digits}\nhooks: [ema]\n")
    done = newer_core.hookbus("train", "run.yaml")
    assert done.returncode == 2
    assert messages["hookbus-ema"] in done.stderr
    assert messages["hookbus-zoo"] in done.stderr
