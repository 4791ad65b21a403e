"""Tests of the public packages: their names resolve, and importing a package imports no torch."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import hookbus
from hookbus.testing.imports import PUBLIC_MODULES, get_public_names

PACKAGES = ("bridge", "checkpoint", "data", "distributed", "evaluation", "metrics", "testing", "writers")


@pytest.mark.parametrize("package", PACKAGES)
def test_public_names_of_a_package_resolve_to_the_objects_of_that_name(package: str) -> None:
    module = importlib.import_module(f"hookbus.{package}")
    for name, source in module._MODULES.items():
        defining = importlib.import_module(source)
        assert getattr(module, name) is (defining if source.endswith(f".{name}") else getattr(defining, name))
    assert module.__all__ == sorted(set(module.__all__))


@pytest.mark.parametrize("package", PACKAGES)
def test_type_checkers_see_the_public_names_of_a_package(package: str) -> None:
    module = importlib.import_module(f"hookbus.{package}")
    imported = re.findall(
        r"^    from ([\w.]+) import (\w+) as \2$", Path(str(module.__file__)).read_text(), re.MULTILINE
    )
    sources = {name: module._MODULES[name].removesuffix(f".{name}") for name in module._MODULES}
    assert {name: defining for defining, name in imported} == sources


@pytest.mark.parametrize("package", PACKAGES)
def test_unknown_name_of_a_package_raises(package: str) -> None:
    module = importlib.import_module(f"hookbus.{package}")
    with pytest.raises(AttributeError, match=f"module 'hookbus.{package}' has no attribute 'unknown'"):
        _ = module.unknown


def test_only_public_modules_list_their_names() -> None:
    root = Path(hookbus.__file__).parent
    listing = {path.relative_to(root) for path in root.rglob("*.py") if "\n__all__ = " in path.read_text()}
    packages = {Path(package, "__init__.py") for package in (*PACKAGES, "testing")}
    assert {path for path in listing if len(path.parts) > 1} == {path for path in packages if (root / path).exists()}


@pytest.mark.parametrize("modules", [[f"hookbus.{package}" for package in PACKAGES], ["hookbus.bus"]])
def test_import_does_not_import_torch(modules: list[str]) -> None:
    script = f"import sys, {', '.join(modules)}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def iter_functions() -> Iterator[tuple[str, Callable[..., object]]]:
    """Yield the public functions by name."""
    for module in PUBLIC_MODULES:
        for name in get_public_names(module):
            value = getattr(importlib.import_module(module), name)
            if inspect.isfunction(value):
                yield f"{module}.{name}", value


@pytest.mark.parametrize(
    ("name", "function"), [*iter_functions()], ids=lambda value: value if type(value) is str else ""
)
def test_every_parameter_of_a_public_function_is_documented(name: str, function: Callable[..., object]) -> None:
    text = inspect.getdoc(function) or ""
    missing = [
        parameter
        for parameter in inspect.signature(function).parameters
        if not re.search(rf"^\s+(?:\w+, )*{parameter}(?:, \w+)*(?: \(.*\))?:", text, re.MULTILINE)
        and f"`{parameter}`" not in text  # described in a sentence
    ]
    assert missing == [], f"{name}: add them to the section Args"
