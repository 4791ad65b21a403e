"""Entry points of installed packages, their names in run files, and whether `HOOKBUS_BLOCK` blocks them."""

from __future__ import annotations

import importlib.metadata
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from hookbus._utils.packages import normalize_name

BLOCK_VARIABLE = "HOOKBUS_BLOCK"
"""Environment variable with the comma-separated names of blocked plugins."""


@dataclass(frozen=True, slots=True)
class PluginEntry:
    """An entry point of an installed package.

    Attributes:
        name: Name of the entry point, the short type in run files.
        class_name: Name of the class that the entry point refers to.
        package: Normalized name of the distribution.
        version: Version of the distribution.
        entry: The entry point itself.
    """

    name: str
    class_name: str
    package: str
    version: str
    entry: importlib.metadata.EntryPoint

    @property
    def full_name(self) -> str:
        """Unambiguous name `package/name`."""
        return f"{self.package}/{self.name}"

    @property
    def names(self) -> tuple[str, ...]:
        """All names that a run file or `HOOKBUS_BLOCK` may use."""
        return self.name, self.class_name, self.full_name, f"{self.package}/{self.class_name}"

    @property
    def blocked(self) -> bool:
        """Whether `HOOKBUS_BLOCK` contains one of the names."""
        return any(self.matches(name) for name in blocked_names())

    def matches(self, name: str) -> bool:
        """Return whether a name refers to the entry. The package part of `package/name` is normalized."""
        package, slash, rest = name.strip().rpartition("/")
        return (f"{normalize_name(package)}/{rest}" if slash else rest) in self.names


def blocked_names() -> list[str]:
    """Return the names in `HOOKBUS_BLOCK`."""
    return [name.strip() for name in os.environ.get(BLOCK_VARIABLE, "").split(",") if name.strip()]


def short_names(entries: Iterable[PluginEntry]) -> dict[PluginEntry, str]:
    """Return the name of each entry: its short name, or the full name if multiple packages publish the short name.

    Args:
        entries: The entries.

    Returns:
        Names by entry, in the given order.
    """
    plugins = list(entries)
    counts = Counter(plugin.name for plugin in plugins)
    return {plugin: plugin.name if counts[plugin.name] == 1 else plugin.full_name for plugin in plugins}
