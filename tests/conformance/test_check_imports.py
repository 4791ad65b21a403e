"""Plugins, examples and samples of the documentation use the public API only."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from hookbus import Run
from hookbus.testing import check_imports
from hookbus.testing.imports import find_problems
from tests.pages import PAGES, ROOT, blocks

FOLDERS = sorted([*ROOT.glob("plugins/*/hookbus_*"), *ROOT.glob("docs/examples/*/hookbus_*")])
PACKAGES = sorted(path.name for path in ROOT.glob("plugins/*/hookbus_*"))


@pytest.mark.parametrize("package", PACKAGES)
def test_plugin_imports_public_names_only(package: str) -> None:
    check_imports(package)


@pytest.mark.parametrize("path", sorted(ROOT.glob("docs/examples/**/*.py")), ids=lambda path: path.name)
def test_example_imports_public_names_only(path: Path) -> None:
    assert list(find_problems(ast.parse(path.read_text()))) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_samples_of_a_page_import_public_names_only(page: Path) -> None:
    sources = [block.text for block in blocks(page) if block.language == "python"]
    assert [problem for source in sources for problem in find_problems(ast.parse(source))] == []


def iter_attributes_of_runs(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and name of each attribute of a variable or attribute `run`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and "run" in (
            getattr(node.value, "id", ""),
            getattr(node.value, "attr", ""),
        ):
            yield node.lineno, node.attr


def test_plugins_use_documented_attributes_of_a_run_only() -> None:
    page = (ROOT / "docs" / "api.md").read_text().partition("::: hookbus.Run\n")[2].partition("\n:::")[0]
    members = set(re.findall(r"^        - (\w+)$", page, re.MULTILINE))
    docstring = inspect.cleandoc(Run.__doc__ or "")
    documented = members | set(re.findall(r"^    (\w+)(?: \(.*\))?: ", docstring, re.MULTILINE))
    assert {"request_save", "model", "validating"} <= documented
    of_trackers = {"finish", "info"}  # of the run objects of W&B and MLflow
    undocumented = {
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for folder in FOLDERS
        for path in folder.rglob("*.py")
        for line, name in iter_attributes_of_runs(path)
        if name not in documented | of_trackers
    }
    assert sorted(undocumented) == []
