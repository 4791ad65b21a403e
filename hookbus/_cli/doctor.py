"""Detection of broken hooks: all are imported in one process, and those that fail in a process of their own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from hookbus import discovery
from hookbus._cli.import_probe import import_all, import_one
from hookbus._utils.packages import broken_distributions
from hookbus._utils.plugin_entries import PluginEntry, short_names
from hookbus.errors import PluginVersionError


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
    """Import every installed hook in one process, and each one that fails in a separate process.

    Yields:
        One report per hook, sorted by name, and one per package with unreadable metadata.
    """
    names = short_names(discovery.list_entries())
    problems = _find_problems(list(names))
    for plugin, name in names.items():
        problem = problems[plugin] or _find_conflict(plugin, list(names))
        yield HookHealth(name, f"{plugin.package} {plugin.version}", not problem, problem)
    for package, flaw in broken_distributions().items():
        yield HookHealth("", package, False, f"its entry points cannot be read: {flaw}; reinstall the package")


def _find_problems(plugins: list[PluginEntry]) -> dict[PluginEntry, str]:
    """Return the reason why each hook cannot be imported, or ""."""
    problems = {plugin: _check_version(plugin) for plugin in plugins}
    accepted = {plugin.full_name: plugin for plugin, problem in problems.items() if not problem}
    # The threads only wait for the processes, so the GIL does not limit them.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        failed = import_all(list(accepted))
        problems |= {
            accepted[name]: problem for name, problem in zip(failed, pool.map(import_one, failed), strict=True)
        }
    return problems


def _check_version(plugin: PluginEntry) -> str:
    """Return the reason why the package of a hook does not accept the running version of hookbus, or ""."""
    try:
        discovery.check_version(plugin)
    except PluginVersionError as error:
        return str(error)
    return ""


def _find_conflict(plugin: PluginEntry, entries: list[PluginEntry]) -> str:
    others = [entry.package for entry in entries if entry.name == plugin.name and entry.package != plugin.package]
    if not others:
        return ""
    return f"{', '.join(others)} also publishes {plugin.name!r}; use {plugin.full_name!r} in run files"
