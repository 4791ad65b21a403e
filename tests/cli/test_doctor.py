"""Tests of the detection of broken hooks."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

import hookbus

if TYPE_CHECKING:
    from tests.conftest import Environment


@pytest.fixture(scope="module")
def reports_and_code(environment: Environment) -> Any:
    """Return the reports of `hookbus doctor --json` and its exit code."""
    done = environment.hookbus("doctor", "--json", MARKER=str(environment.path / "reports_and_code"))
    assert done.stderr == ""
    return {report["name"]: report for report in json.loads(done.stdout)}, done.returncode


def test_working_hooks_are_ok(reports_and_code: Any) -> None:
    reports, _ = reports_and_code
    working = {name for name, report in reports.items() if report["ok"]}
    assert working == {"greet", "logger", "progress", "render", "silent"}
    assert all(reports[name]["problem"] == "" for name in working)
    assert reports["greet"]["package"] == "acme-hooks 1.2"


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("broken", "ModuleNotFoundError: No module named 'surely_not_there'"),
        ("killing", "the import was killed by SIGABRT"),
        ("leaving", "the import exited with code 0"),
        (
            "tomorrow",
            f"tomorrow-hooks 5.0 requires hookbus>=99, but hookbus {hookbus.__version__} is installed. Run: pip "
            "install --upgrade hookbus tomorrow-hooks",
        ),
        ("twin-one/twin", "twin-two also publishes 'twin'; use 'twin-one/twin' in run files"),
        ("twin-two/twin", "twin-one also publishes 'twin'; use 'twin-two/twin' in run files"),
    ],
)
def test_broken_hook_has_a_reason(reports_and_code: Any, name: str, problem: str) -> None:
    report = reports_and_code[0][name]
    assert (report["ok"], report["problem"]) == (False, problem)


def test_entry_point_without_a_class_is_broken(reports_and_code: Any) -> None:
    assert reports_and_code[0]["odd"]["problem"].startswith(
        "acme_hooks:not_a_class should be a hook class, got <function"
    )


def test_broken_hook_exits_with_code_1(reports_and_code: Any) -> None:
    assert reports_and_code[1] == 1


@pytest.mark.slow
def test_broken_hook_is_shown_with_its_reason(environment: Environment) -> None:
    lines = environment.hookbus("doctor", MARKER=str(environment.path / "reports_and_code")).stdout.splitlines()
    (broken,) = [line for line in lines if "broken-hooks" in line]
    reason = "ModuleNotFoundError: No module named 'surely_not_there'"
    assert re.fullmatch(rf"broken +broken +broken-hooks 0\.3 +{reason} *", broken)
    assert re.fullmatch(r"\d+ installed, [1-9]\d* broken", lines[-1])


def test_no_installed_hook_exits_with_code_0(bare_environment: Environment) -> None:
    done = bare_environment.hookbus("doctor")
    assert (done.stdout, done.returncode) == ("No hooks are installed.\n", 0)
