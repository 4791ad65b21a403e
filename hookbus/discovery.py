"""Plugin discovery through entry points, metadata first.

1. `list_entries`: Read the entry points of the installed packages from their metadata. Nothing is imported.
2. `find_entry`: Select the entry of a requested name, unless `HOOKBUS_BLOCK=a,b` lists it.
3. `check_version`: Check the hookbus version that the package requires against the running version.
4. `load_entry`: Import the plugin.

An installed plugin is never registered automatically.
"""

from __future__ import annotations

import os
import warnings
from importlib.metadata import EntryPoint
from typing import Any

from hookbus._utils.imports import suggest_if_close
from hookbus._utils.packages import (
    DATASETS_GROUP,
    HOOKS_GROUP,
    MODELS_GROUP,
    cache_within_lookups,
    check_requirement,
    entry_points,
    load_entry_point,
    normalize_name,
    split_entry_point,
)
from hookbus._utils.plugin_entries import (
    PluginEntry,
    blocked_names,
    explain_missing,
    get_publishing_package,
)
from hookbus._utils.variables import BLOCK_VARIABLE
from hookbus.errors import HookWarning, PluginConflictError, PluginError, PluginNotFoundError

__all__ = ["check_version", "find_entry", "list_entries", "load_entry", "warn_of_unknown_blocks"]


@cache_within_lookups
def list_entries(group: str = HOOKS_GROUP) -> list[PluginEntry]:
    """Return the entry points of installed packages in a group, sorted by name. Nothing is imported.

    Args:
        group: Entry-point group. Default: hooks.

    Returns:
        One entry per entry point and package.
    """
    # A set, because the metadata of a package may be installed twice, for example as egg-info and dist-info.
    entries = {_describe_entry(entry) for entry in entry_points(group)}
    return sorted(entries, key=lambda plugin: (plugin.name, plugin.package))


def _describe_entry(entry: EntryPoint) -> PluginEntry:
    assert entry.dist is not None
    metadata = entry.dist.metadata  # parsed by each access
    return PluginEntry(
        entry.name, split_entry_point(entry)[1], normalize_name(metadata["Name"]), metadata["Version"], entry
    )


def find_entry(name: str, group: str = HOOKS_GROUP, kind: str = "hook") -> PluginEntry:
    """Return the entry of a name.

    Args:
        name: Name of an entry point, class name, or `package/name`.
        group: Entry-point group. Default: hooks.
        kind: Noun for messages. Default: "hook".

    Returns:
        The only entry that matches and is not blocked.

    Raises:
        PluginNotFoundError: If no installed package publishes the name. The message names the package to install.
        PluginConflictError: If multiple packages publish the name.
        PluginError: If `HOOKBUS_BLOCK` blocks the name.
    """
    installed = list_entries(group)
    matching = [plugin for plugin in installed if plugin.matches(name)]
    allowed = [plugin for plugin in matching if not plugin.blocked]
    if not matching:
        aliases = [alias for plugin in installed for alias in (plugin.name, plugin.class_name)]
        raise PluginNotFoundError(explain_missing(name, kind, aliases))
    if not allowed:
        raise PluginError(
            f"The {kind} {name!r} is blocked by {BLOCK_VARIABLE}={os.environ.get(BLOCK_VARIABLE)}. Remove it from the "
            "variable."
        )
    # Two entry points of one package may be aliases of the same class.
    if len({(plugin.package, plugin.entry.value) for plugin in allowed}) > 1:
        packages = " and ".join(dict.fromkeys(f"{plugin.package} {plugin.version}" for plugin in allowed))
        choices = " or ".join(repr(plugin.full_name) for plugin in allowed)
        raise PluginConflictError(
            f"The {kind} {name!r} is published by {packages}. Use one of the full names: {choices}."
        )
    return allowed[0]


def check_version(plugin: PluginEntry) -> None:
    """Raise if the package of an entry does not accept the running version of hookbus.

    Args:
        plugin: The entry.

    Raises:
        PluginVersionError: If the package requires another version.
    """
    assert plugin.entry.dist is not None
    check_requirement(plugin.entry.dist)


def load_entry(plugin: PluginEntry) -> Any:
    """Import the object that an entry refers to, after checking the required hookbus version.

    Args:
        plugin: The entry.

    Returns:
        The imported object.

    Raises:
        PluginVersionError: If the package requires another version of hookbus.
        PluginImportError: If the import fails. The message contains the cause.
    """
    remedy = "Repair or remove the package (`hookbus doctor` lists all broken packages)."
    return load_entry_point(plugin.entry, f"publishes {plugin.name!r}", remedy)


def warn_of_unknown_blocks() -> None:
    """Warn about each name in `HOOKBUS_BLOCK` that is neither an installed plugin nor a hook of the hookbus project."""
    blocked = blocked_names()
    groups = (HOOKS_GROUP, MODELS_GROUP, DATASETS_GROUP) if blocked else ()
    installed = [plugin for group in groups for plugin in list_entries(group)]
    for name in blocked:
        if get_publishing_package(name) is None and not any(plugin.matches(name) for plugin in installed):
            hint = suggest_if_close(name, [alias for plugin in installed for alias in plugin.names])
            message = f"{BLOCK_VARIABLE}: {name!r} is not an installed hook and is ignored.{hint}"
            warnings.warn(message, HookWarning, stacklevel=2)
