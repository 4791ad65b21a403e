"""Tests of the detection of broken hooks."""

from __future__ import annotations

import json
import re
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest

import hookbus
from hookbus._cli import import_probe
from hookbus._cli.import_probe import import_all, import_one

if TYPE_CHECKING:
    from tests.conftest import Environment


@pytest.fixture(scope="module")
def reports_and_code(environment: Environment) -> Any:
    """Return the reports of `hookbus doctor --json` and its exit code."""
    done = environment.hookbus("doctor", "--json", MARKER=str(environment.path / "reports_and_code"))
    assert done.stderr == ""
    return {report["name"]: report for report in json.loads(done.stdout)}, done.returncode


@pytest.mark.slow
def test_working_hooks_are_ok(reports_and_code: Any) -> None:
    reports, _ = reports_and_code
    working = {name for name, report in reports.items() if report["ok"]}
    assert working == {"greet", "logger", "progress", "render", "silent"}
    assert all(reports[name]["problem"] == "" for name in working)
    assert reports["greet"]["package"] == "acme-hooks 1.2"


@pytest.mark.slow
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


@pytest.mark.slow
def test_entry_point_without_a_class_is_broken(reports_and_code: Any) -> None:
    assert reports_and_code[0]["odd"]["problem"].startswith(
        "acme_hooks:not_a_class: should refer to a hook class, got <function"
    )


@pytest.mark.slow
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


HOOK = "class ProbedHook: pass\n"
MODULES = {
    "a_good": f"print('on standard output')\n{HOOK}",
    "b_raising": "raise ValueError('two\\nlines')",
    "c_leaving": "import os, sys\nprint('a reason', file=sys.stderr, flush=True)\nos._exit(3)",
    "d_good": HOOK,
    "e_killed": "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)",
    "f_hanging": "import time\ntime.sleep(1000)",
    "g_exiting": "import sys\nsys.exit('a library is missing')",
    "h_threaded": f"import threading, time\nthreading.Thread(target=time.sleep, args=[1000]).start()\n{HOOK}",
    "i_instance": "ProbedHook = 3",
}
PROBLEMS = {
    "a_good": "",
    "b_raising": "ValueError: two lines",
    "c_leaving": "a reason",
    "e_killed": "the import was killed by SIGSEGV",
    "g_exiting": "a library is missing",
    "h_threaded": "",
    "i_instance": "i_instance:ProbedHook: no class.",
}
TIMEOUT_S = 5.0


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace hookbus and torch in the child processes, whose import takes seconds, by a list of modules."""
    listing = f"""
        class Entry:
            def __init__(self, name):
                self.full_name, self.value, self.entry = name, f"{{name}}:ProbedHook", self
            def load(self):
                return __import__(self.full_name).ProbedHook
        class discovery:
            list_entries = staticmethod(lambda: [Entry(name) for name in {list(MODULES)}])
        """
    check = "find_class_problem = lambda value: '' if isinstance(value, type) else 'no class.'"
    modules = {"hookbus/__init__": dedent(listing), "hookbus/hook": "", "torch": "", "hookbus/_config/hooks": check}
    modules |= MODULES
    (tmp_path / "hookbus/_config").mkdir(parents=True)
    for name, text in modules.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)


@pytest.mark.usefixtures("stub")
def test_hooks_that_end_the_process_do_not_affect_the_others() -> None:
    names = [name for name in MODULES if name != "f_hanging"]
    assert import_all(names) == ["b_raising", "c_leaving", "e_killed", "g_exiting", "i_instance"]


@pytest.mark.usefixtures("stub")
def test_failing_hook_has_the_reason_of_its_own_process() -> None:
    assert {name: import_one(name) for name in PROBLEMS} == PROBLEMS


@pytest.mark.slow
@pytest.mark.usefixtures("stub")
def test_hook_that_blocks_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_probe, "SHARED_TIMEOUT_S", TIMEOUT_S)
    monkeypatch.setattr(import_probe, "IMPORT_TIMEOUT_S", TIMEOUT_S)
    assert import_all(["d_good", "f_hanging", "h_threaded"]) == ["f_hanging"]
    assert import_one("f_hanging") == "the import exceeded 5 seconds"
