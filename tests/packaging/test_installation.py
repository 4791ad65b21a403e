"""Installation as in the README: from the distributions alone, in environments without the sources."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from releasing.projects import find_bridges, find_projects

from tests.conftest import Environment
from tests.packaging.toys import remove_sources
from tests.pages import ROOT, blocks, iter_commands

README = ROOT / "README.md"
BRIDGES = list(find_bridges(ROOT))
PACKAGES = [name.replace("-", "_") for name in find_projects(ROOT) if name not in BRIDGES]
IMPORT_ALL = """
import importlib, json, pkgutil

modules = [importlib.import_module(name) for name in {packages}]
for package in list(modules):
    names = [module.name for module in pkgutil.walk_packages(package.__path__, package.__name__ + ".")]
    modules += [importlib.import_module(name) for name in names if not name.endswith("__main__")]
print(json.dumps([module.__file__ for module in modules]))
"""
LOAD_CAPABILITIES = """
import importlib.metadata, json, sys

before = set(sys.modules)
entries = importlib.metadata.entry_points(group="hookbus.bridges")
hosts = {entry.name: entry.load().host for entry in entries}
new = {name.partition(".")[0] for name in set(sys.modules) - before}
print(json.dumps([sorted({entry.dist.name for entry in entries}), sorted(hosts), sorted(new)]))
"""
VERSIONS = "\nimport hookbus\nprint(torch.__version__)\nprint(hookbus.__file__)\n"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def create_environment(path: Path) -> Environment:
    environment = Environment(path)
    remove_sources(environment)
    return environment


def install(environment: Environment, dist: Path, *requirements: str) -> None:
    """Install packages from a folder, with the dependencies of their metadata."""
    options = ["--quiet", "--no-index", "--find-links", str(dist)]
    done = environment.python("-m", "pip", "install", *options, *requirements)
    assert done.returncode == 0, done.stderr


def read_commands(program: str) -> Iterator[list[str]]:
    """Yield the arguments of the commands of the README that run a program."""
    for block in blocks(README, "console"):
        for command, _ in iter_commands(block.text):
            if command.startswith(f"{program} "):
                yield shlex.split(command)[1:]


@pytest.fixture(scope="module")
def everything(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Environment with all packages."""
    environment = create_environment(tmp_path_factory.mktemp("everything"))
    install(environment, dist, "hookbus[all]")
    return environment


def test_readme_examples_run_in_a_fresh_environment(dist: Path, tmp_path: Path) -> None:
    environment = create_environment(tmp_path)
    (run_file,) = blocks(README, "yaml")
    (tmp_path / "run.yaml").write_text(run_file.text)
    code = [block.text for block in blocks(README, "python") if block.file is None]
    first, *others = read_commands("pip")

    assert first == ["install", "hookbus[standard]"]
    install(environment, dist, *first[1:])
    done = environment.python("-W", "error", "-c", "\n".join(code) + VERSIONS)
    assert done.returncode == 0, done.stderr
    version, module = done.stdout.splitlines()[-2:]
    assert (version, Path(module).parents[1]) == (torch.__version__, environment.packages)

    for _, *requirements in others:
        install(environment, dist, *requirements)
    for arguments in read_commands("hookbus"):
        done = environment.python("bin/hookbus", *arguments)
        assert done.returncode == 0, done.stderr
    status = json.loads((tmp_path / "runs/digits/status.json").read_text())
    assert (status["outcome"], status["epochs_done"]) == ("finished", 5)


def test_dependencies_of_all_packages_are_compatible(everything: Environment) -> None:
    done = everything.python("-m", "pip", "check")

    assert done.returncode == 0, done.stdout


def test_every_module_is_imported_from_the_wheels(everything: Environment) -> None:
    done = everything.python("-W", "error", "-c", IMPORT_ALL.format(packages=PACKAGES))

    assert done.returncode == 0, done.stderr
    files = [Path(file) for file in json.loads(done.stdout)]
    assert {file.relative_to(everything.packages).parts[0] for file in files} == set(PACKAGES)
    installed = {file for package in PACKAGES for file in (everything.packages / package).rglob("*.py")}
    assert {file for file in installed - set(files) if file.name != "__main__.py"} == set()


def test_capabilities_of_trainers_are_imported_from_the_wheels_without_the_trainers(dist: Path, tmp_path: Path) -> None:
    environment = create_environment(tmp_path)
    names = [name.replace("-", "_") for name in ["hookbus", *BRIDGES]]
    environment.install(*(wheel for name in names for wheel in dist.glob(f"{name}-*.whl")))
    done = environment.python("-W", "error", "-c", LOAD_CAPABILITIES)

    assert done.returncode == 0, done.stderr
    packages, hosts, imported = json.loads(done.stdout)
    assert packages == sorted(BRIDGES)
    assert {host.partition(".")[0] for host in hosts} & set(imported) == set()


def test_index_accepts_all_distributions(dist: Path) -> None:
    files = sorted(dist.iterdir())
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert len(files) == 2 * len(PACKAGES + BRIDGES)
    assert done.returncode == 0, done.stdout
