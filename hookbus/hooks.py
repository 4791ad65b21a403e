"""Namespace of the installed hook classes: `from hookbus.hooks import EMAHook` loads the class by its entry point."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    from hookbus.discovery import find_entry, load_entry
    from hookbus.errors import PluginError

    try:
        return load_entry(find_entry(name))
    except PluginError as error:  # Python replaces an AttributeError by "cannot import name" and drops its message
        raise ImportError(str(error), name=name) from error


def __dir__() -> list[str]:
    from hookbus.discovery import list_entries

    return sorted({plugin.class_name for plugin in list_entries()})
