"""The sample packages, as somebody else would publish and use them: built, installed, found, trained with, tested."""

from __future__ import annotations

import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Environment
from tests.pages import ROOT, blocks

SAMPLES = sorted(path.parent for path in ROOT.glob("docs/examples/*/pyproject.toml"))
HOOKS = {
    "hookbus-csv": {"csv": "CsvHook"},
    "hookbus-hello": {"hello": "HelloHook"},
    "hookbus-render": {"frame": "FrameHook", "render": "RenderHook"},
    "hookbus-retry": {"retry": "RetryHook"},
}
SAID = {"hookbus-hello": "Good morning, Sequential with 8970 weights!"}  # 64 * 64 + 64, 64 * 64 + 64, 64 * 10 + 10
NEEDED = ["hookbus-zoo", "hookbus-logger"]
"""What the run files of the samples name besides, and where their words are seen."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    """An environment with wheels of the core, the samples and what they need, and none of this repository's sources."""
    made = Environment(tmp_path_factory.mktemp("elsewhere"))
    core = importlib.metadata.distribution("hookbus").files or ()
    for name in {"0.pth", *(file.parts[0] for file in core if file.parts[0] != "..")}:
        (made.packages / name).unlink(missing_ok=True)
    wheels = tmp_path_factory.mktemp("wheels")
    for project in (ROOT, *(ROOT / "plugins" / name for name in NEEDED), *SAMPLES):
        copy = shutil.copytree(project, wheels / "source" / project.name, ignore=_is_no_source)
        command = ["-m", "build", "--wheel", "--no-isolation", "--outdir", str(wheels), str(copy)]
        subprocess.run([sys.executable, *command], check=True, capture_output=True, text=True)
    made.install(*wheels.glob("*.whl"))
    return made


def _is_no_source(directory: str, names: list[str]) -> set[str]:
    """What a working copy holds besides its sources."""
    left_by_runs = {"runs", "dist"} if Path(directory, "pyproject.toml").exists() else set()
    return {name for name in names if name.startswith(".") or name in {"__pycache__", *left_by_runs}}


def test_what_runs_there_comes_from_the_wheels(elsewhere: Environment) -> None:
    found = elsewhere.answer("import hookbus, hookbus_hello\nanswer = [hookbus.__file__, hookbus_hello.__file__]")

    assert {Path(path).parent.parent for path in found} == {elsewhere.packages}


def test_the_hooks_are_found_by_their_names(elsewhere: Environment) -> None:
    listed = json.loads(elsewhere.hookbus("hooks", "--json").stdout)

    named: dict[str, dict[str, str]] = {}
    for each in listed:
        named.setdefault(each["package"], {})[each["name"]] = each["class"]
    assert {package: named.get(package) for package in HOOKS} == HOOKS


def test_the_point_of_a_package_is_listed_beside_ours(elsewhere: Environment) -> None:
    assert json.loads(elsewhere.hookbus("points", "--json").stdout)["after_render"] == {"package": "hookbus-render 1.0"}


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.name)
def test_the_run_file_of_the_readme_trains(elsewhere: Environment, sample: Path) -> None:
    (run_file,) = blocks(sample / "README.md", "yaml")
    (elsewhere.path / f"{sample.name}.yaml").write_text(run_file.text)

    done = elsewhere.hookbus("train", f"{sample.name}.yaml")

    assert done.returncode == 0, done.stderr
    assert SAID.get(sample.name, "") in done.stdout
    (directory,) = re.findall("^work_dir: (.*)$", run_file.text, re.MULTILINE)
    assert json.loads((elsewhere.path / directory / "status.json").read_text())["outcome"] == "finished"


def test_the_code_of_the_readmes_runs(elsewhere: Environment) -> None:
    code = [block.text for sample in SAMPLES for block in blocks(sample / "README.md", "python")]

    done = elsewhere.python("-W", "error", "-c", "\n".join(code))

    assert done.returncode == 0, done.stderr


def test_the_hooks_keep_their_promises_there(elsewhere: Environment) -> None:
    lines = ["from hookbus.testing import check_hook"]
    for sample, hooks in HOOKS.items():
        lines += [f"from {sample.replace('-', '_')} import {', '.join(hooks.values())}"]
        lines += [f"check_hook({name})" for name in hooks.values()]

    done = elsewhere.python("-W", "error", "-c", "\n".join(lines))

    assert done.returncode == 0, done.stderr


def test_the_tests_of_the_samples_pass_there(elsewhere: Environment) -> None:
    for sample in SAMPLES:
        shutil.copytree(sample / "tests", elsewhere.path / "tests" / sample.name)

    done = elsewhere.python("-W", "error", "-m", "pytest", "-q", "--import-mode=importlib", "tests")

    assert done.returncode == 0, done.stdout + done.stderr
