"""Which installed hooks are broken, and why?"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

import hookbus

if TYPE_CHECKING:
    from tests.conftest import Environment


@pytest.fixture(scope="module")
def examined(environment: Environment) -> Any:
    """What `hookbus doctor --json` says, and its exit code."""
    done = environment.hookbus("doctor", "--json", MARKER=str(environment.path / "examined"))
    assert done.stderr == ""
    return {report["name"]: report for report in json.loads(done.stdout)}, done.returncode


def test_what_works_is_ok(examined: Any) -> None:
    reports, _ = examined
    working = {name for name, report in reports.items() if report["ok"]}
    assert working == {"greet", "logger", "progress", "render", "silent"}
    assert all(reports[name]["problem"] == "" for name in working)
    assert reports["greet"]["package"] == "acme-hooks 1.2"


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("broken", "ModuleNotFoundError: No module named 'surely_not_there'"),
        ("killing", "importing it killed the process by SIGABRT"),
        ("leaving", "importing it ended the process with code 0"),
        (
            "tomorrow",
            f"tomorrow-hooks 5.0 requires hookbus>=99, and this is hookbus {hookbus.__version__}. Run: pip install "
            "--upgrade hookbus tomorrow-hooks",
        ),
        ("twin-one/twin", "twin-two offers 'twin' as well; write 'twin-one/twin' in run files"),
        ("twin-two/twin", "twin-one offers 'twin' as well; write 'twin-two/twin' in run files"),
    ],
)
def test_what_is_broken_says_why(examined: Any, name: str, problem: str) -> None:
    report = examined[0][name]
    assert (report["ok"], report["problem"]) == (False, problem)


def test_what_is_no_class_is_broken(examined: Any) -> None:
    assert examined[0]["odd"]["problem"].startswith("acme_hooks:not_a_class is <function")


def test_something_broken_is_an_error(examined: Any) -> None:
    assert examined[1] == 1


@pytest.mark.slow
def test_a_broken_hook_is_shown_with_its_reason(environment: Environment) -> None:
    lines = environment.hookbus("doctor", MARKER=str(environment.path / "examined")).stdout.splitlines()
    (broken,) = [line for line in lines if "broken-hooks" in line]
    reason = "ModuleNotFoundError: No module named 'surely_not_there'"
    assert re.fullmatch(rf"broken +broken +broken-hooks 0\.3 +{reason} *", broken)
    assert re.fullmatch(r"\d+ installed, [1-9]\d* broken", lines[-1])


def test_nothing_installed_is_nothing_broken(bare_environment: Environment) -> None:
    done = bare_environment.hookbus("doctor")
    assert (done.stdout, done.returncode) == ("No hooks are installed.\n", 0)
