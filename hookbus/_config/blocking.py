"""Names that `HOOKBUS_BLOCK` excludes from run files."""

from __future__ import annotations

import warnings

from hookbus._utils.imports import suggest_if_close
from hookbus._utils.packages import DATASETS_GROUP, HOOKS_GROUP, MODELS_GROUP
from hookbus._utils.plugin_entries import BLOCK_VARIABLE, blocked_names, get_publishing_package
from hookbus.discovery import list_entries
from hookbus.errors import HookWarning

BLOCKABLE_GROUPS = (HOOKS_GROUP, MODELS_GROUP, DATASETS_GROUP)
"""Entry-point groups that `HOOKBUS_BLOCK` applies to."""


def is_blocked(name: str) -> bool:
    """Return whether `HOOKBUS_BLOCK` blocks every installed hook of a name."""
    # The metadata of the installed packages is read only if a name is blocked.
    matching = [plugin for plugin in list_entries() if plugin.matches(name)] if blocked_names() else []
    return bool(matching) and all(plugin.blocked for plugin in matching)


def warn_of_unknown_blocks() -> None:
    """Warn about each name in `HOOKBUS_BLOCK` that is neither an installed plugin nor a hook of the hookbus project."""
    blocked = blocked_names()
    installed = [plugin for group in BLOCKABLE_GROUPS if blocked for plugin in list_entries(group)]
    for name in blocked:
        if get_publishing_package(name) is None and not any(plugin.matches(name) for plugin in installed):
            hint = suggest_if_close(name, [alias for plugin in installed for alias in plugin.names])
            message = f"{BLOCK_VARIABLE}: {name!r} is not an installed hook and is ignored.{hint}"
            warnings.warn(message, HookWarning, stacklevel=2)
