"""Tests of the imports between the modules of `hookbus`, read from the source."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

import hookbus

ROOT = Path(hookbus.__file__).parent

MODULE, FUNCTION, TYPE = "module", "function", "type"
"""Imports executed with the module, imports executed by a function call, and imports under TYPE_CHECKING."""

LARGEST_COMPONENT = 23
"""Maximum number of modules that depend on each other by imports of all kinds, mostly through the type `Run`."""

EVENTS = sorted(f"hookbus._events.{path.stem}" for path in (ROOT / "_events").glob("[!_]*.py"))
"""Modules of the event bus. They import neither the run nor hooks, torch or pydantic."""

UTILITIES = {
    "hookbus.errors",
    *(f"hookbus._utils.{name}" for name in ("arguments", "deprecations", "imports", "known_keys", "packages")),
}
"""Modules that the modules of the event bus may import in addition to each other."""

DISTRIBUTIONS = {*sys.stdlib_module_names, "pluggy"}
"""Top-level modules outside of hookbus that the modules of the event bus may import."""


class Imports(ast.NodeVisitor):
    """Names that a module imports, with the kind of each import."""

    def __init__(self) -> None:
        self.names: list[tuple[str, str]] = []
        self._kind = MODULE

    def visit_Import(self, node: ast.Import) -> None:
        self.names += [(alias.name, self._kind) for alias in node.names]

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        assert node.level == 0, "relative imports are not resolved"
        self.names += [(f"{node.module}.{alias.name}", self._kind) for alias in node.names]

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._visit_as(FUNCTION, node.body)

    def visit_If(self, node: ast.If) -> None:
        is_type_only = isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        self._visit_as(TYPE if is_type_only else self._kind, node.body)
        self._visit_as(self._kind, node.orelse)

    def _visit_as(self, kind: str, nodes: Iterable[ast.stmt]) -> None:
        outer, self._kind = self._kind, kind
        for node in nodes:
            self.visit(node)
        self._kind = outer


def read_imports() -> dict[str, list[tuple[str, str]]]:
    """Return the imported names of each module, with the kind of each import.

    `hookbus/__init__.py` is excluded: every import of a submodule executes it, and it loads its names lazily.
    """
    imports = {}
    for path in ROOT.rglob("*.py"):
        name = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")
        visitor = Imports()
        visitor.visit(ast.parse(path.read_text()))
        imports[name] = visitor.names
    del imports["hookbus"]
    return imports


IMPORTS = read_imports()


def edges(*kinds: str) -> dict[str, set[str]]:
    """Return the modules that each module imports by the given kinds of imports."""
    return {
        module: {target for name, kind in names if kind in kinds and (target := module_of(name))} - {module}
        for module, names in IMPORTS.items()
    }


def module_of(name: str) -> str | None:
    """Return the module of `hookbus` that contains an imported name, None for other packages."""
    return name if name in IMPORTS else parent if (parent := name.rpartition(".")[0]) in IMPORTS else None


def components(graph: Mapping[str, set[str]]) -> list[set[str]]:
    """Return the strongly connected components with more than one node, largest first (Tarjan's algorithm)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    result: list[set[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in sorted(graph[node]):
            if target not in index:
                visit(target)
            if target in stack:
                low[node] = min(low[node], low[target])
        if low[node] == index[node]:
            position = stack.index(node)
            component = set(stack[position:])
            del stack[position:]
            result.extend([component] if len(component) > 1 else [])

    for node in graph:
        if node not in index:
            visit(node)
    return sorted(result, key=len, reverse=True)


def foreign_imports(module: str) -> Iterator[str]:
    """Yield the names that a module of the event bus imports from outside of it."""
    for name, _ in IMPORTS[module]:
        if module_of(name) not in {*EVENTS, *UTILITIES} and name.partition(".")[0] not in DISTRIBUTIONS:
            yield name


def test_components_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}, "f": {"a", "f"}}
    assert components(graph) == [{"a", "b", "c"}, {"d", "e"}]


def test_modules_do_not_import_each_other_in_a_cycle() -> None:
    assert components(edges(MODULE)) == []


def test_only_from_file_closes_a_cycle_by_an_import_in_a_function() -> None:
    assert components(edges(MODULE, FUNCTION)) == [{"hookbus.bus", "hookbus._config.load", "hookbus._config.models"}]


def test_few_modules_depend_on_each_other_including_types() -> None:
    largest = components(edges(MODULE, FUNCTION, TYPE))[0]
    assert len(largest) <= LARGEST_COMPONENT, sorted(largest)


@pytest.mark.parametrize("module", EVENTS)
def test_event_bus_imports_only_its_own_modules_and_utilities(module: str) -> None:
    assert list(foreign_imports(module)) == []


def test_event_bus_is_imported_without_torch_and_pydantic() -> None:
    modules = {"torch", "pydantic", "hookbus._run", "hookbus.hook"}
    code = f"import sys, hookbus._events.bus; print({modules} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
