"""Tests of the automation of the repository: workflows, hooks of pre-commit, and what the README claims about them."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version
from ruamel.yaml import YAML
from versions.matrix import NEWEST_TORCH, PYTHON_VERSIONS, TORCH_VERSIONS

from tests.pages import ROOT

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
MAKEFILE = (ROOT / "Makefile").read_text()
GUIDE = (ROOT / "CONTRIBUTING.md").read_text()


def load_yaml(path: str) -> Any:
    return YAML(typ="safe").load((ROOT / path).read_text())


def find_targets(text: str) -> set[str]:
    """Return the targets of all make commands in a text."""
    commands = re.findall(r"\bmake((?: [a-z][\w-]*)+)", text)
    return {target for command in commands for target in command.split()}


def phony_targets() -> set[str]:
    return set(re.findall(r"^\.PHONY: (.+)$", MAKEFILE, re.MULTILINE)[0].split())


def commands_of(target: str) -> str:
    return re.findall(rf"^{target}:.*\n((?:\t.+\n)+)", MAKEFILE, re.MULTILINE)[0]


def steps_of(workflow: Any) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def test_every_target_of_the_makefile_is_described() -> None:
    assert phony_targets() - find_targets(" ".join(re.findall(r"`(.+?)`", GUIDE))) == set()


def test_workflow_runs_every_check_except_the_benchmarks() -> None:
    locally = find_targets((ROOT / ".ci/run").read_text())
    assert len(locally) >= 9
    commands = " ".join(step.get("run", "") for step in steps_of(load_yaml(".github/workflows/ci.yml")))
    assert locally - {"bench", "environments"} <= find_targets(commands) <= phony_targets()


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflow_needs_no_secret_and_may_only_read(path: Any) -> None:
    workflow = YAML(typ="safe").load(path.read_text())
    assert "secrets." not in path.read_text()
    assert workflow["permissions"] == {"contents": "read"}
    assert all("timeout-minutes" in job for job in workflow["jobs"].values())


def test_workflow_tests_the_pythons_of_the_classifiers_and_each_torch_of_the_matrix() -> None:
    jobs = load_yaml(".github/workflows/ci.yml")["jobs"]
    pythons = jobs["tests"]["strategy"]["matrix"]["python"]

    assert jobs["torch"]["strategy"]["matrix"]["torch"] == list(TORCH_VERSIONS)
    assert pythons == ["3.11", *PYTHON_VERSIONS]
    assert [f"Programming Language :: Python :: {version}" for version in pythons] == [
        line for line in PYPROJECT["project"]["classifiers"] if line.startswith("Programming Language :: Python :: 3.")
    ]


def test_tested_versions_of_torch_begin_with_the_lowest_and_end_with_the_newest() -> None:
    (torch,) = [r for r in map(Requirement, PYPROJECT["project"]["dependencies"]) if r.name == "torch"]
    versions = [Version(version) for version in TORCH_VERSIONS]

    assert f">={versions[0].major}.{versions[0].minor}" == str(torch.specifier)
    assert versions == sorted(versions)
    assert TORCH_VERSIONS[-1] == NEWEST_TORCH


def test_every_tool_of_make_lint_checks_commits() -> None:
    (repository,) = load_yaml(".pre-commit-config.yaml")["repos"]
    entries = [hook["entry"] for hook in repository["hooks"]]

    assert repository["repo"] == "local"
    assert {hook["language"] for hook in repository["hooks"]} == {"system"}
    assert all(entry.startswith(".venv/bin/") for entry in entries)
    for command in ("ruff check", "ruff format", "tests/vocabulary.py", "codespell"):
        assert command in commands_of("lint")
        assert [entry for entry in entries if command in entry], f"{command} checks no commit"


def test_tools_are_pinned_to_the_versions_that_were_tested() -> None:
    lines = (ROOT / ".ci/constraints.txt").read_text().splitlines()[1:]
    pinned = {re.sub(r"[-_.]+", "-", line.partition("==")[0]).lower() for line in lines}
    groups = [Requirement(line) for group in PYPROJECT["dependency-groups"].values() for line in group]

    assert {re.sub(r"[-_.]+", "-", requirement.name).lower() for requirement in groups} - pinned == set()


def test_readme_states_the_required_coverage() -> None:
    required = PYPROJECT["tool"]["coverage"]["report"]["fail_under"]
    assert f"at least {required} % of the statements and branches" in " ".join((ROOT / "README.md").read_text().split())


def test_updates_of_actions_and_of_constraints_are_proposed() -> None:
    updates = load_yaml(".github/dependabot.yml")["updates"]
    directories = {update["package-ecosystem"]: update["directory"] for update in updates}
    assert directories == {"github-actions": "/", "pip": "/.ci"}
