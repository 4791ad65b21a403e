"""Packages of the hookbus project, and the message for a plugin that is not installed."""

from __future__ import annotations

from collections.abc import Collection

from hookbus._utils.imports import suggest_if_close
from hookbus._utils.known_keys import PUBLISHED_HOOKS
from hookbus._utils.packages import broken_distributions
from hookbus._utils.values import format_value, shorten
from hookbus.errors import suggest_names


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
        kind: Noun for the message, "hook" for a plugin that may be in `PUBLISHED_HOOKS`.
        installed: Names of the installed plugins.

    Returns:
        The message, with the package to install or the closest match.
    """
    package = get_publishing_package(name) if kind == "hook" else None
    if package is not None:
        return f"The hook {name!r} is not installed. Run: pip install {package}"
    published = [alias for hooks in PUBLISHED_HOOKS.values() for pair in hooks.items() for alias in pair]
    hint = suggest_if_close(name, installed) or (suggest_if_close(name, published) if kind == "hook" else "")
    flaws = "".join(
        f" The entry points of {package} cannot be read: {flaw}." for package, flaw in broken_distributions().items()
    )
    return (
        f"No installed package publishes the {kind} {format_value(name)}.{hint or suggest_names(name, installed)}"
        f"{flaws} Install the package that publishes it, or use an import string such as my_module:{shorten(name)}."
    )
