"""Detection of broken hooks: each installed hook is imported in a separate process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from hookbus import discovery
from hookbus._utils.packages import broken_distributions
from hookbus._utils.plugin_entries import PluginEntry, short_names
from hookbus.errors import PluginVersionError

IMPORT_TIMEOUT_S = 120
"""Timeout of one import, in seconds."""

IMPORTED_MESSAGE = "hookbus: imported"
PROBE = f"""
import sys
from hookbus import discovery
plugin = next(entry for entry in discovery.list_entries() if entry.full_name == sys.argv[1])
hook = plugin.entry.load()
if not isinstance(hook, type):
    sys.exit(f"{{plugin.entry.value}} should be a hook class, got {{hook!r}}")
print({IMPORTED_MESSAGE!r})
"""


@dataclass(frozen=True, slots=True)
class HookHealth:
    """Import result of one hook.

    Attributes:
        name: Name of the hook in run files.
        package: Distribution and version.
        ok: Whether the hook can be used.
        problem: Reason on one line, or "".
    """

    name: str
    package: str
    ok: bool
    problem: str


def check_installed_hooks() -> Iterator[HookHealth]:
    """Import every installed hook in a separate process, so that a crash does not affect the other hooks.

    Yields:
        One report per hook, sorted by name, and one per package with unreadable metadata.
    """
    names = short_names(discovery.list_entries())
    # The threads only wait for the processes, so the GIL does not limit them.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for (plugin, name), problem in zip(names.items(), pool.map(_check_plugin, names), strict=True):
            problem = problem or _find_conflict(plugin, list(names))
            yield HookHealth(name, f"{plugin.package} {plugin.version}", not problem, problem)
    for package, flaw in broken_distributions().items():
        yield HookHealth("", package, False, f"its entry points cannot be read: {flaw}; reinstall the package")


def _check_plugin(plugin: PluginEntry) -> str:
    """Import a hook in a separate process. Returns the reason if it cannot be used, else ""."""
    try:
        discovery.check_version(plugin)
    except PluginVersionError as error:
        return str(error)
    command = [sys.executable, "-W", "ignore", "-c", PROBE, plugin.full_name]
    try:
        process = subprocess.run(
            command,
            capture_output=True,
            encoding="utf-8",
            errors="replace",  # a message may be in the encoding of the system
            timeout=IMPORT_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"the import exceeded {IMPORT_TIMEOUT_S} seconds"
    if process.returncode < 0:
        return f"the import was killed by {signal.Signals(-process.returncode).name}"
    # The exit code is not enough: a module may call `sys.exit(0)`.
    if process.returncode == 0 and process.stdout.rstrip().endswith(IMPORTED_MESSAGE):
        return ""
    lines = process.stderr.strip().splitlines()
    return lines[-1] if lines else f"the import exited with code {process.returncode}"


def _find_conflict(plugin: PluginEntry, entries: list[PluginEntry]) -> str:
    others = [entry.package for entry in entries if entry.name == plugin.name and entry.package != plugin.package]
    if not others:
        return ""
    return f"{', '.join(others)} also publishes {plugin.name!r}; use {plugin.full_name!r} in run files"
