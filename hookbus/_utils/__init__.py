"""Helpers that depend on no other package of hookbus, and the loading of public names on their first use."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def map_names(modules: Mapping[str, str]) -> dict[str, str]:
    """Return the module of each public name, sorted by name.

    Args:
        modules: Names of each module, separated by spaces.
    """
    return dict(sorted((name, module) for module, names in modules.items() for name in names.split()))


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package that imports each of its public names on first use.

    Importing the package thus imports neither torch nor the modules behind the names.

    Args:
        package: Name of the package.
        modules: Full name of the module that defines each public name, or of the module that has this name.
    """

    def load_name(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(modules[name])
        return module if modules[name].endswith(f".{name}") else getattr(module, name)

    return load_name
