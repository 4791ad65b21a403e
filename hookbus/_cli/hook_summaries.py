"""First lines of the docstrings of classes, read from the source of their modules without importing anything."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from importlib.machinery import ModuleSpec
from typing import Any

from hookbus._utils.packages import split_entry_point
from hookbus._utils.plugin_entries import PluginEntry

MAX_IMPORTS = 10
"""Maximum number of modules between an entry point and the module that defines its class."""


def read_summary(plugin: PluginEntry) -> str:
    """Return the first line of the docstring of a hook class; "" if it has none, or if its source is not available."""
    module, name = split_entry_point(plugin.entry)
    try:
        return _read_summary(module, name.split("."))
    except Exception:  # foreign finders, loaders and sources: a missing summary is no error of the list of hooks
        return ""


def _read_summary(module: str, names: Sequence[str], remaining: int = MAX_IMPORTS) -> str:
    for definition in _iter_definitions(_parse(module), names):
        if isinstance(definition, ast.ClassDef):
            return (ast.get_docstring(definition) or "").strip().partition("\n")[0].strip()
        is_package = _find_spec(module).submodule_search_locations is not None
        source = importlib.util.resolve_name(
            f"{'.' * definition.level}{definition.module or ''}", module if is_package else module.rpartition(".")[0]
        )
        alias = next(alias for alias in definition.names if (alias.asname or alias.name) == names[0])
        # A module that is not installed is imported in a `try` block.
        with suppress(ModuleNotFoundError):
            return _read_summary(source, [alias.name, *names[1:]], remaining - 1) if remaining else ""
    return ""


def _iter_definitions(tree: ast.Module, names: Sequence[str]) -> Iterator[ast.ClassDef | ast.ImportFrom]:
    """Yield the classes with a dotted name, and the imports of its first name."""
    first, *others = names
    for statement in _iter_statements(tree.body):
        if isinstance(statement, ast.ImportFrom) and any((a.asname or a.name) == first for a in statement.names):
            yield statement
        elif isinstance(statement, ast.ClassDef) and statement.name == first:
            if others:
                yield from _iter_definitions(ast.Module(statement.body, []), others)
            else:
                yield statement


def _iter_statements(statements: Sequence[Any]) -> Iterator[Any]:
    """Yield statements, and those in `if` and `try` blocks."""
    for statement in statements:
        yield statement
        if isinstance(statement, (ast.If, ast.Try, ast.ExceptHandler)):
            blocks = [getattr(statement, name, ()) for name in ("body", "orelse", "handlers")]
            yield from _iter_statements([inner for block in blocks for inner in block])


@cache
def _parse(module: str) -> ast.Module:
    spec = _find_spec(module)
    source: str | None = spec.loader.get_source(module)  # type: ignore[union-attr]
    return ast.parse(source or "")


@cache
def _find_spec(module: str) -> ModuleSpec:
    """Return the spec of a module. Unlike `importlib.util.find_spec`, this does not import its parents.

    Raises:
        ModuleNotFoundError: If there is no such module.
    """
    parent = module.rpartition(".")[0]
    locations = _find_spec(parent).submodule_search_locations if parent else None
    for finder in sys.meta_path:
        spec = finder.find_spec(module, None if locations is None else list(locations))
        if spec is not None:
            return spec
    raise ModuleNotFoundError(module)
