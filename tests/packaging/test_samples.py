"""The sample packages as third-party packages: built, installed, found, used in a training, and tested."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.conftest import Environment
from tests.packaging.toys import build_wheel, remove_sources
from tests.pages import ROOT, blocks

SAMPLES = sorted(path.parent for path in ROOT.glob("docs/examples/*/pyproject.toml"))
HOOKS = {
    "hookbus-tsv": {"tsv": "TsvHook"},
    "hookbus-hello": {"hello": "HelloHook"},
    "hookbus-render": {"frame": "FrameHook", "render": "RenderHook"},
    "hookbus-retry": {"retry": "RetryHook"},
}
# 8970 = 2 * (64 * 64 + 64) + 64 * 10 + 10
EXPECTED_OUTPUT = {"hookbus-hello": "Good morning, Sequential with 8970 weights!"}
NEEDED = ["hookbus", "hookbus_zoo", "hookbus_logger"]
"""The core, and packages that the run files of the samples use or that show their output."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def wheel_environment(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Create an environment with wheels of the core, the samples and their requirements, without the sources."""
    environment = Environment(tmp_path_factory.mktemp("wheel_environment"))
    remove_sources(environment)
    needed = [wheel for name in NEEDED for wheel in dist.glob(f"{name}-*.whl")]
    wheels = tmp_path_factory.mktemp("wheels")
    environment.install(*needed, *(build_wheel(sample, wheels) for sample in SAMPLES))
    return environment


def test_packages_are_imported_from_the_wheels(wheel_environment: Environment) -> None:
    paths = wheel_environment.answer(
        "import hookbus, hookbus_hello\nanswer = [hookbus.__file__, hookbus_hello.__file__]"
    )

    assert {Path(path).parent.parent for path in paths} == {wheel_environment.packages}


def test_hooks_are_found_by_name(wheel_environment: Environment) -> None:
    listed = json.loads(wheel_environment.hookbus("hooks", "--json").stdout)

    classes: dict[str, dict[str, str]] = {}
    for row in listed:
        classes.setdefault(row["package"], {})[row["name"]] = row["class"]
    assert {package: classes.get(package) for package in HOOKS} == HOOKS


def test_point_of_a_package_is_listed(wheel_environment: Environment) -> None:
    assert json.loads(wheel_environment.hookbus("points", "--json").stdout)["after_render"] == {
        "package": "hookbus-render 1.0"
    }


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.name)
def test_run_file_of_the_readme_trains(wheel_environment: Environment, sample: Path) -> None:
    (run_file,) = blocks(sample / "README.md", "yaml")
    (wheel_environment.path / f"{sample.name}.yaml").write_text(run_file.text)

    done = wheel_environment.hookbus("train", f"{sample.name}.yaml")

    assert done.returncode == 0, done.stderr
    assert EXPECTED_OUTPUT.get(sample.name, "") in done.stdout
    (directory,) = re.findall("^work_dir: (.*)$", run_file.text, re.MULTILINE)
    assert json.loads((wheel_environment.path / directory / "status.json").read_text())["outcome"] == "finished"


def test_code_of_the_readmes_runs(wheel_environment: Environment) -> None:
    code = [block.text for sample in SAMPLES for block in blocks(sample / "README.md", "python")]

    done = wheel_environment.python("-W", "error", "-c", "\n".join(code))

    assert done.returncode == 0, done.stderr


def test_tests_of_a_new_package_pass(wheel_environment: Environment) -> None:
    assert wheel_environment.hookbus("new", "hookbus-mine").returncode == 0

    done = wheel_environment.python("-W", "error", "-m", "pytest", "-q", "hookbus-mine")

    assert done.returncode == 0, done.stdout + done.stderr


def test_tests_of_the_samples_pass(wheel_environment: Environment) -> None:
    for sample in SAMPLES:  # `check_hook` is among them
        shutil.copytree(sample / "tests", wheel_environment.path / "tests" / sample.name)

    done = wheel_environment.python("-W", "error", "-m", "pytest", "-q", "--import-mode=importlib", "tests")

    assert done.returncode == 0, done.stdout + done.stderr
