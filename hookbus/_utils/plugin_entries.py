"""Entry points of installed packages, their names in run files, and the message for a plugin that is not installed."""

from __future__ import annotations

import importlib.metadata
import os
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from hookbus._utils.imports import suggest_if_close
from hookbus._utils.known_keys import PUBLISHED_FACTORIES, PUBLISHED_HOOKS
from hookbus._utils.packages import broken_distributions, normalize_name
from hookbus._utils.values import format_value, shorten
from hookbus._utils.variables import BLOCK_VARIABLE
from hookbus.errors import suggest_names

INSTALL_STANDARD = 'pip install "hookbus[standard]"'
"""Command that installs the hooks of most trainings. The quotes are for shells in which brackets are patterns."""


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
    """Return the name of each entry: its short name, or the full name if multiple packages publish the short name."""
    plugins = list(entries)
    counts = Counter(plugin.name for plugin in plugins)
    return {plugin: plugin.name if counts[plugin.name] == 1 else plugin.full_name for plugin in plugins}


def get_publishing_package(name: str) -> str | None:
    """Return the package of the hookbus project that publishes a hook, installed or not, or None.

    Args:
        name: Name of the entry point or of the hook class.
    """
    return next(
        (package for package, hooks in PUBLISHED_HOOKS.items() if name in hooks or name in hooks.values()), None
    )


def explain_missing(name: str, kind: str, installed: Collection[str]) -> str:
    """Return the message for a name that no installed package publishes.

    Args:
        name: The requested name.
        kind: Noun for the message: `hook` for those of `PUBLISHED_HOOKS`, `model` or `dataset` for factories.
        installed: Names of the installed plugins.

    Returns:
        The message, with the package to install or the closest match.
    """
    factories = PUBLISHED_FACTORIES.get(kind, {})
    package = get_publishing_package(name) if kind == "hook" else factories.get(name)
    if package is not None:
        return f"The {kind} {name!r} is not installed. Run: pip install {package}"
    hooks = [alias for hooks in PUBLISHED_HOOKS.values() for pair in hooks.items() for alias in pair]
    hint = suggest_if_close(name, installed) or suggest_if_close(name, hooks if kind == "hook" else factories)
    flaws = "".join(
        f" The entry points of {package} cannot be read: {flaw}." for package, flaw in broken_distributions().items()
    )
    return (
        f"No installed package publishes the {kind} {format_value(name)}.{hint or suggest_names(name, installed)}"
        f"{flaws} Install the package that publishes it, or use an import string such as my_module:{shorten(name)}."
    )
