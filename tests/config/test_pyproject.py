"""Tests of the table in `pyproject.toml`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hookbus._config.load import load_config
from hookbus.errors import ConfigError

if TYPE_CHECKING:
    from tests.conftest import Project


@pytest.fixture
def nested(project: Project) -> Path:
    """Return a folder two levels below the one of the project."""
    folder = project.path / "outer" / "inner"
    folder.mkdir(parents=True)
    (folder / "run.yaml").write_text("device: cpu\n")
    return folder


def test_table_is_read(project: Project) -> None:
    project.write(
        "[tool.hookbus]\nseed = 3\nhooks = ['ema']\n[tool.hookbus.optimizer]\ntype = 'SGD'\nlr = 0.1\n",
        "pyproject.toml",
    )
    config = load_config({})
    assert (config.seed, config.optimizer.settings, config.hooks) == (3, {"lr": 0.1}, [{"type": "ema"}])


def test_nearest_file_with_the_table_above_the_run_file_is_read(project: Project, nested: Path) -> None:
    project.write("[tool.hookbus]\nseed = 1\ndevice = 'x'\norder = 'ascending'\n", "pyproject.toml")
    assert load_config(nested / "run.yaml").seed == 1
    project.write("[tool.hookbus]\nseed = 2\n", "outer/pyproject.toml")
    config = load_config(nested / "run.yaml")
    assert (config.seed, config.device, config.order) == (2, "cpu", "nested")
    project.write("[tool.other]\nhookbus = 3\n", "outer/inner/pyproject.toml")
    assert load_config(Path("outer/inner/run.yaml")).seed == 2


def test_file_of_the_current_directory_is_read_without_one_above_the_run_file(
    project: Project, tmp_path_factory: pytest.TempPathFactory
) -> None:
    project.write("[tool.hookbus]\nseed = 4\n", "pyproject.toml")
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "run.yaml").write_text("device: cpu\n")
    assert load_config(elsewhere / "run.yaml").seed == 4
    (elsewhere / "pyproject.toml").write_text("[tool.hookbus]\nseed = 5\n")
    assert load_config(elsewhere / "run.yaml").seed == 5
    assert load_config({}).seed == 4


@pytest.mark.parametrize("text", ["a = = 3\n", "[tool.other]\nx = 1\n", "tool = 3 # hookbus\n", ""])
def test_file_without_the_table_has_no_effect(project: Project, text: str) -> None:
    project.write(text, "pyproject.toml")
    assert load_config({}).seed == 0


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[tool.hookbus]\nseed = -1\n", "[tool.hookbus] seed: should be greater than or equal to 0, got -1."),
        ("[tool.hookbus]\nsead = 1\n", "[tool.hookbus] sead: unknown key. Did you mean 'seed'?"),
        (
            "[tool.hookbus]\nmodel.day = 2026-01-01\n",
            "[tool.hookbus] model.day: should be a built-in type, got datetime.date(2026, 1, 1). Quote it.",
        ),
        ("[tool]\nhookbus = 3\n", "[tool.hookbus] should be a table, got 3."),
        ("[tool.hookbus]\nseed = \n", "invalid TOML: Invalid value (at line 2, column 8)."),
    ],
)
def test_invalid_table_is_an_error(project: Project, text: str, problem: str) -> None:
    project.write(text, "pyproject.toml")
    with pytest.raises(ConfigError) as caught:
        load_config({})
    assert caught.value.problems == [f"pyproject.toml: {problem}"]


def test_file_outside_of_the_current_directory_is_named_by_its_path(project: Project, nested: Path) -> None:
    path = project.write("[tool.hookbus]\nsead = 1\n", "pyproject.toml").absolute()
    os.chdir(nested)
    with pytest.raises(ConfigError, match="sead: unknown key") as caught:
        load_config("run.yaml")
    assert caught.value.problems[0].startswith(f"{path}: [tool.hookbus] sead: ")


def test_directory_of_this_name_has_no_effect(project: Project) -> None:
    (project.path / "pyproject.toml").mkdir()
    assert load_config({}).seed == 0
