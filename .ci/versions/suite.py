"""Run the tests in an environment, and make sure that the named versions are the ones that run."""

from __future__ import annotations

import ast
import datetime
import json
import os
import re
import subprocess
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from versions.environments import Environment

__all__ = ["Result", "check_versions", "run_tests"]

FAST = "not slow and not gpu"
SLOW = "slow and not gpu"
OPTIONS = ("--numprocesses", "auto", "--dist", "worksteal", "--randomly-dont-reset-seed")
SOME_FAILED = 1  # exit status of pytest; a larger one means that not all tests ran
# torch is asked itself: the metadata that is found first may belong to another installation.
READ_VERSIONS = """
import importlib.metadata, json, platform, sys, torch
running = {name: importlib.metadata.version(name) for name in sys.argv[1:] if name not in ("python", "torch")}
print(json.dumps({**running, "python": platform.python_version(), "torch": torch.__version__}))
"""


@dataclass(frozen=True)
class Result:
    """Outcome of the tests in an environment.

    Attributes:
        versions: Versions of Python and torch that ran.
        passed: Number of tests that passed.
        failed: Number of tests that failed.
        skipped: Number of skipped tests of each reason.
        date: Date of the run, in ISO format.
    """

    versions: dict[str, str]
    passed: int
    failed: int
    skipped: dict[str, int]
    date: str


def check_versions(environment: Environment) -> dict[str, str]:
    """Return the versions that run.

    Raises:
        SystemExit: If one is not the requested version, with all that differ, or if they cannot be imported.
    """
    command = [str(environment.python), "-c", READ_VERSIONS, *environment.expected]
    done = subprocess.run(command, env=_variables(environment), capture_output=True, text=True, check=False)
    remedy = f"Remove {environment.folder} and repeat the command."
    if done.returncode:
        error = done.stderr.strip().rpartition("\n")[2]
        raise SystemExit(f"{environment.name}: the environment is damaged, got {error!r}. {remedy}")
    running: dict[str, str] = json.loads(done.stdout)
    wrong = [
        f"{name} {running[name]} runs instead of {version}"
        for name, version in environment.expected.items()
        if not _is_version(running[name], version)
    ]
    if wrong:
        raise SystemExit(f"{environment.name}: {'; '.join(wrong)}. {remedy}")
    return running


def run_tests(environment: Environment, root: Path, paths: Sequence[str] = (), select: str = FAST) -> Result:
    """Run the tests of some paths, or of all.

    Args:
        environment: Environment.
        root: Repository.
        paths: Test files and folders. Empty for all.
        select: Expression of markers.

    Raises:
        SystemExit: If not all tests ran.
    """
    versions = check_versions(environment)
    report = root / ".venv" / f"{environment.name.replace(' ', '-')}.xml"
    report.unlink(missing_ok=True)
    command = [str(environment.python), "-m", "pytest", "-m", select, *OPTIONS, f"--junitxml={report}", *paths]
    done = subprocess.run(command, cwd=root, env=_variables(environment), check=False)
    if done.returncode > SOME_FAILED or not report.exists():
        raise SystemExit(
            f"{environment.name}: pytest did not finish, got exit status {done.returncode}. Read its output."
        )
    return _read_report(environment.name, report, versions)


def _read_report(name: str, report: Path, versions: dict[str, str]) -> Result:
    cases = list(ElementTree.parse(report).iter("testcase"))
    if missing := [case.get("name") for case in cases if case.find("error[@message='collection failure']") is not None]:
        raise SystemExit(f"{name}: not all tests were collected, got {missing}. Read the output of pytest.")
    failed = sum(case.find("failure") is not None or case.find("error") is not None for case in cases)
    reasons = [_read_reason(skip) for case in cases for skip in case.findall("skipped")]
    running = {name: versions[name] for name in ("python", "torch")}
    today = datetime.date.today().isoformat()
    return Result(running, len(cases) - failed - len(reasons), failed, dict(Counter(reasons)), today)


def _read_reason(skip: ElementTree.Element) -> str:
    message = skip.get("message", "")
    if message != "collection skipped":
        return message
    # of a whole module: the text is a tuple of file, line and reason
    reason: str = ast.literal_eval(skip.text or "")[2]
    return reason.removeprefix("Skipped: ")


def _is_version(running: str, expected: str) -> bool:
    # "3.13" stands for each 3.13.x, and "2.13.0" for the build 2.13.0+cpu.
    return re.match(rf"{re.escape(expected)}(\.0)*($|[.+])", running) is not None


def _variables(environment: Environment) -> dict[str, str]:
    return {**os.environ, **environment.variables}
