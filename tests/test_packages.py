"""Which distribution does a module come from?"""

from __future__ import annotations

import types
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hookbus import Hook
from hookbus._packages import (
    HOOKS_GROUP,
    class_of_entry,
    distribution_of,
    entry_point_of,
    entry_points,
    module_of,
    package_of,
    parts_of,
    point_specs,
    unreadable,
)
from hookbus.discovery import find, load
from hookbus.errors import PluginImportError, PluginNotFound

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


Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts the metadata of a distribution on the path: `install("name", entry points, METADATA)`."""

    def put(name: str, entries: str, metadata: str | None = None) -> None:
        folder = tmp_path / f"{name}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Name: {name}\nVersion: 1.0\n" if metadata is None else metadata)
        (folder / "entry_points.txt").write_text(entries)
        monkeypatch.syspath_prepend(tmp_path)

    return put


class TestBrokenMetadata:
    def offered(self, name: str) -> bool:
        return name in {entry.name for entry in entry_points(HOOKS_GROUP)}

    def test_a_package_without_a_name_costs_no_other(self, install: Install, tmp_path: Path) -> None:
        install("good", "[hookbus.hooks]\ngood_one = nowhere:Good\n")
        install("bad", "[hookbus.hooks]\nbad_one = nowhere:Bad\n", metadata="")

        assert self.offered("good_one")
        assert not self.offered("bad_one")
        assert unreadable() == {str(tmp_path): "its METADATA gives no name"}

    def test_a_malformed_list_costs_no_other_and_is_told(self, install: Install) -> None:
        install("good", "[hookbus.hooks]\ngood_one = nowhere:Good\n")
        install("bad", "[hookbus.hooks]\nbad_one\n")

        assert self.offered("good_one")
        assert unreadable() == {"bad": "its entry_points.txt is malformed"}
        with pytest.raises(
            PluginNotFound, match=r"What bad offers cannot be read: its entry_points.txt is malformed\."
        ):
            find("bad_one")

    def test_of_packages_that_have_nothing_to_do_with_it_nothing_is_said(self, install: Install) -> None:
        install("stranger", "[console_scripts]\nbroken\n")

        assert unreadable() == {}


def test_points_that_cannot_be_imported_are_told_with_their_package(install: Install) -> None:
    install("some-points", "[hookbus.points]\nafter_some_thing = nowhere_at_all:Spec\n")

    with pytest.raises(
        PluginImportError, match="some-points 1.0 offers the point 'after_some_thing', but nowhere_at_all"
    ):
        point_specs({"after_some_thing"})


def test_a_module_that_leaves_in_its_own_way_is_told(install: Install, tmp_path: Path) -> None:
    (tmp_path / "skips_itself.py").write_text("class Skipped(BaseException): ...\n\nraise Skipped('not here')\n")
    install("skips", "[hookbus.hooks]\nskips = skips_itself:SkipsHook\n")

    with pytest.raises(PluginImportError, match="skips 1.0 offers 'skips', but .* Skipped: not here"):
        load(find("skips"))


def test_a_module_offered_as_a_hook_is_not_blocked_by_nothing(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOOKBUS_BLOCK", raising=False)
    install("modules", "[hookbus.hooks]\na_module = types\n")

    assert find("a_module").blocked is False
