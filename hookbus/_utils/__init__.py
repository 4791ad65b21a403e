"""Helpers that depend on no other package of hookbus, and the loading of public names on their first use."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

STATIC_IMPORT = re.compile(r"^    from ([\w.]+) import (\w+) as \2$", re.MULTILINE)
"""An import under `TYPE_CHECKING` that makes a name public."""


def read_public_names(package: str) -> dict[str, str]:
    """Return the public names of a package and the module of each, sorted by name.

    They are listed once, as imports under `TYPE_CHECKING`: type checkers and IDEs do not evaluate `__getattr__`.

    Args:
        package: Name of the package, whose `__init__` contains the imports.
    """
    loader: Any = sys.modules[package].__loader__
    modules = {name: module for module, name in STATIC_IMPORT.findall(loader.get_source(package))}
    return dict(sorted(modules.items()))


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package that imports each of its public names on first use.

    Importing the package thus imports neither torch nor the modules behind the names.

    Args:
        package: Name of the package.
        modules: Module of each public name, see `read_public_names`.
    """

    def load_name(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(__import__(modules[name], fromlist=[name]), name)

    return load_name
