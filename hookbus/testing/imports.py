"""Check that a package imports only the public names of hookbus."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from hookbus.errors import suggest_names

PUBLIC_MODULES = (
    "hookbus",
    "hookbus.bridge",
    "hookbus.checkpoint",
    "hookbus.data",
    "hookbus.distributed",
    "hookbus.errors",
    "hookbus.evaluation",
    "hookbus.metrics",
    "hookbus.testing",
    "hookbus.writers",
)
"""Modules whose `__all__` is the public API. All other modules may change in any version."""

LOOKUPS = ("hookbus.hooks", "hookbus.testing.plugin")
"""Modules that are imported by name, and have other names than those of an `__all__`."""


def check_imports(package: str) -> None:
    """Check that a package imports only the public names of hookbus, which later versions keep.

    The sources are parsed, not executed. Imports inside functions and those for type checkers are checked as well.

    Args:
        package: Name of an installed package or module, such as `"hookbus_ema"`.

    Raises:
        ModuleNotFoundError: If the package is not installed.
        AssertionError: If an import is not public. The message lists all of them with file and line.

    Example:
        >>> def test_imports():
        ...     check_imports("hookbus_ema")
    """
    problems = [
        f"{path}:{line}: {problem}"
        for path in _find_sources(package)
        for line, problem in find_problems(ast.parse(path.read_bytes(), str(path)))
    ]
    if problems:
        raise AssertionError("\n".join([f"{package}: imports that are not public:", *problems]))


def _find_sources(package: str) -> list[Path]:
    """Return the source files of a package or module, without importing it."""
    spec = find_spec(package)
    if spec is None:
        raise ModuleNotFoundError(f"No module named {package!r}. Install the package, or pass its import name.")
    if spec.submodule_search_locations is None:
        return [Path(str(spec.origin))]
    return sorted(path for folder in spec.submodule_search_locations for path in Path(folder).rglob("*.py"))


def find_problems(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and message of each import that is not public."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
            names = [(node.module, alias.name) for alias in node.names]
        else:
            continue
        for module, name in names:
            if module.partition(".")[0] == "hookbus" and (problem := _find_problem(module, name)):
                yield node.lineno, problem


def _find_problem(module: str, name: str) -> str:
    """Return why an import is not public, "" if it is; `name` is "" for the import of a module."""
    if f"{module}.{name}" in PUBLIC_MODULES or module in LOOKUPS:
        return ""
    if module not in PUBLIC_MODULES:
        return f"{module} is a private module.{_suggest_home(name)}"
    public = get_public_names(module)
    if name in ("", "__version__") or name in public:
        return ""
    return f"{module} has no public name {name!r}.{_suggest_home(name) or suggest_names(name, public)}"


def _suggest_home(name: str) -> str:
    """Return a sentence about the public module of a name, "" if no public module has the name."""
    homes = [module for module in PUBLIC_MODULES if name in get_public_names(module)]
    return f" Import {name} from {homes[0]}." if homes else ""


def get_public_names(module: str) -> list[str]:
    """Return the public names of one of the public modules."""
    imported = importlib.import_module(module)
    # `hookbus.__all__` lacks the names that import torch.
    return list(getattr(imported, "_MODULES", imported.__all__))
