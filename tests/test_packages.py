"""Which distribution does a module come from?"""

from __future__ import annotations

import types
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any

import pytest

from hookbus import Hook
from hookbus._packages import (
    class_of_entry,
    distribution_of,
    entry_point_of,
    module_of,
    package_of,
    parts_of,
    point_specs,
)

if TYPE_CHECKING:
    from tests.conftest import Environment


class LooseHook(Hook):
    pass


class TestWithoutAPackage:
    def test_a_module_of_no_distribution_is_named_itself(self) -> None:
        hook = LooseHook()
        hook.__module__ = "loose_module_1"
        assert package_of(hook) == "module loose_module_1"
        assert distribution_of("loose_module_1") is None

    def test_a_class_of_the_script_is_the_scripts(self) -> None:
        hook = LooseHook()
        hook.__module__ = "__main__"
        assert package_of(hook) == "your script"

    def test_a_class_that_nobody_offers_has_no_entry_point(self) -> None:
        assert entry_point_of(LooseHook) is None
        assert class_of_entry("LooseHook") == set()
        assert point_specs({"after_nothing_at_all"}, "loose_module_1") == []


def test_a_module_and_an_object_know_their_module() -> None:
    assert module_of(types) == "types"
    assert module_of(LooseHook()) == LooseHook.__module__


@pytest.mark.parametrize(
    ("value", "parts"),
    [("pkg.mod:Cls", ("pkg.mod", "Cls")), ("pkg.mod", ("pkg.mod", "")), ("not a valid!value", ("", ""))],
)
def test_a_malformed_entry_point_names_nothing(value: str, parts: tuple[str, str]) -> None:
    assert parts_of(EntryPoint("x", value, "hookbus.hooks")) == parts


def test_a_library_that_is_no_plugin_is_found_by_its_module() -> None:
    found = distribution_of("pluggy.something")
    assert found is not None
    assert found.name == "pluggy"


SCRIPT = """
    from hookbus import _packages
    from hookbus.runfile.builder import build_hook
    hook = build_hook({"type": "render"})
    specs = lambda *of: [spec.__name__ for spec in _packages.point_specs(*of)]
    answer = {
        "package": _packages.package_of(hook),
        "entry point": _packages.entry_point_of(type(hook)),
        "by entry point": sorted(_packages.class_of_entry("render")),
        "by class": sorted(_packages.class_of_entry("RenderHook")),
        "points by name": specs({"after_render"}),
        "points by module": specs((), "acme_render.inner"),
        "other points": specs({"after_nothing"}, "acme_hooks"),
    }
"""


@pytest.fixture(scope="module")
def answer(environment: Environment) -> Any:
    """What is known of an installed package."""
    return environment.answer(SCRIPT)


class TestInstalledPackages:
    def test_a_hook_knows_its_package_and_version(self, answer: Any) -> None:
        assert answer["package"] == "acme-render 1.0"

    def test_a_hook_class_knows_its_entry_point_and_the_other_way_round(self, answer: Any) -> None:
        assert answer["entry point"] == "render"
        assert answer["by entry point"] == answer["by class"] == ["RenderHook", "render"]

    def test_points_are_found_by_their_name_and_by_the_package(self, answer: Any) -> None:
        assert answer["points by name"] == answer["points by module"] == ["RenderPoints"]
        assert answer["other points"] == []
