"""Import of hooks in child processes, which plugins may crash, block or write to."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

SHARED_TIMEOUT_S = 20
"""Timeout of one import in the common process, in seconds. A slower hook is imported in a process of its own."""

IMPORT_TIMEOUT_S = 120
"""Timeout of one import in a process of its own, and of that of torch, in seconds."""

POLL_INTERVAL_S = 0.05

PROBE = """
import json, os, sys
from hookbus import discovery
from hookbus._config.hooks import find_class_problem
import torch, hookbus.hook  # the time of a hook does not include theirs

results = open(sys.argv[1], "w", encoding="utf-8")


def report(*result):
    print(json.dumps(result), file=results, flush=True)


def find_problem(plugin):
    try:
        hook = plugin.entry.load()
    except SystemExit as error:
        message = isinstance(error.code, str) and error.code
        return message or f"the import exited with code {error.code or 0}"
    except BaseException as error:
        return f"{type(error).__name__}: {error}".removesuffix(": ")
    problem = find_class_problem(hook)
    return f"{plugin.entry.value}: {problem}" if problem else ""


plugins = {plugin.full_name: plugin for plugin in discovery.list_entries()}
report()
for name in sys.argv[2:]:
    report(name, " ".join(find_problem(plugins[name]).split()))
os._exit(0)  # a thread that a plugin has started must not block the exit
"""
"""Program of a child process. It writes a line of JSON after each import: the name of the hook, and its problem."""


def import_all(names: Sequence[str]) -> list[str]:
    """Import hooks in one process; those that follow a hook that ended or blocked it in a further one.

    Args:
        names: Full names of the hooks.

    Returns:
        The hooks whose import failed.
    """
    failed, remaining = list[str](), list(names)
    while remaining:
        problems, _ = _import(remaining, SHARED_TIMEOUT_S)
        failed += [name for name, problem in problems.items() if problem]
        remaining = remaining[len(problems) :]
        failed += remaining[:1]
        del remaining[:1]
    return failed


def import_one(name: str) -> str:
    """Import a hook in a process of its own.

    Args:
        name: Full name of the hook.

    Returns:
        The reason why the import failed, or "".
    """
    problems, end = _import([name], IMPORT_TIMEOUT_S)
    return problems.get(name, end)


def _import(names: Sequence[str], timeout: float) -> tuple[dict[str, str], str]:
    """Import hooks in a child process until it ends, or until one import exceeds a timeout in seconds.

    Returns:
        The problem of each imported hook, "" for none, and the reason why the process ended.
    """
    with tempfile.TemporaryDirectory() as folder:
        results, errors = Path(folder, "results"), Path(folder, "errors")
        results.touch()
        command = [sys.executable, "-W", "ignore", "-c", PROBE, str(results), *names]
        with errors.open("wb") as stream:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stream)
            in_time = _wait(process, results, timeout)
        # Without the end of a line that a killed process was writing.
        lines = results.read_text(encoding="utf-8").rpartition("\n")[0].splitlines()
        problems = dict(json.loads(line) for line in lines[1:])
        if not in_time:
            return problems, f"the import exceeded {timeout:g} seconds"
        return problems, _describe_end(process.returncode, errors.read_text(encoding="utf-8", errors="replace"))


def _wait(process: subprocess.Popen[bytes], results: Path, timeout: float) -> bool:
    """Wait for the end of a process and kill it if it writes no result in time. Return whether it ended itself."""
    size, deadline = 0, time.monotonic() + IMPORT_TIMEOUT_S
    while process.poll() is None:
        with suppress(subprocess.TimeoutExpired):
            process.wait(POLL_INTERVAL_S)
        now, old_size, size = time.monotonic(), size, results.stat().st_size
        if size != old_size:
            deadline = now + timeout
        elif now > deadline:
            process.kill()
            process.wait()
            return False
    return True


def _describe_end(code: int, errors: str) -> str:
    """Return why a process ended before the import of a hook was complete."""
    if code < 0:
        return f"the import was killed by {signal.Signals(-code).name}"
    lines = errors.strip().splitlines()
    return lines[-1].strip() if lines else f"the import exited with code {code}"
