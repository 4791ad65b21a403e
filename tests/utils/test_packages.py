"""Tests of the lookup of distributions and entry points."""

from __future__ import annotations

import types
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hookbus import Hook
from hookbus._utils.packages import (
    HOOKS_GROUP,
    broken_distributions,
    cache_within_lookups,
    cached_lookups,
    entry_points,
    get_distribution,
    get_entry_point_name,
    get_module_name,
    hook_names_of_entry,
    load_point_specs,
    normalize_name,
    package_label,
    split_entry_point,
)
from hookbus.discovery import find_entry, load_entry
from hookbus.errors import PluginImportError, PluginNotFoundError, PluginVersionError

if TYPE_CHECKING:
    from tests.conftest import Environment


class LooseHook(Hook):
    pass


class TestWithoutAPackage:
    def test_loose_module_is_named_by_itself(self) -> None:
        hook = LooseHook()
        hook.__module__ = "loose_module_1"
        assert package_label(hook) == "module loose_module_1"
        assert get_distribution("loose_module_1") is None

    def test_class_of_the_script_is_named_your_script(self) -> None:
        hook = LooseHook()
        hook.__module__ = "__main__"
        assert package_label(hook) == "your script"

    def test_unpublished_class_has_no_entry_point(self) -> None:
        assert get_entry_point_name(LooseHook) is None
        assert hook_names_of_entry("LooseHook") == set()
        assert load_point_specs({"after_nothing_at_all"}, "loose_module_1") == []


def test_module_of_modules_and_objects() -> None:
    assert get_module_name(types) == "types"
    assert get_module_name(LooseHook()) == LooseHook.__module__


@pytest.mark.parametrize(
    ("value", "parts"),
    [("pkg.mod:Cls", ("pkg.mod", "Cls")), ("pkg.mod", ("pkg.mod", "")), ("not a valid!value", ("", ""))],
)
def test_malformed_entry_point_has_no_module(value: str, parts: tuple[str, str]) -> None:
    assert split_entry_point(EntryPoint("x", value, "hookbus.hooks")) == parts


def test_distribution_of_a_library_is_found_by_its_module() -> None:
    distribution = get_distribution("pluggy.something")
    assert distribution is not None
    assert distribution.name == "pluggy"


SCRIPT = """
    from hookbus._config.hooks import build_hook
    from hookbus._utils import packages
    hook = build_hook({"type": "render"})
    specs = lambda *of: [spec.__name__ for spec in packages.load_point_specs(*of)]
    answer = {
        "package": packages.package_label(hook),
        "entry point": packages.get_entry_point_name(type(hook)),
        "by entry point": sorted(packages.hook_names_of_entry("render")),
        "by class": sorted(packages.hook_names_of_entry("RenderHook")),
        "points by name": specs({"after_render"}),
        "points by module": specs((), "acme_render.inner"),
        "other points": specs({"after_nothing"}, "acme_hooks"),
    }
"""


@pytest.fixture(scope="module")
def answer(environment: Environment) -> Any:
    """Return the metadata of an installed package."""
    return environment.answer(SCRIPT)


class TestInstalledPackages:
    def test_hook_has_package_and_version(self, answer: Any) -> None:
        assert answer["package"] == "acme-render 1.0"

    def test_entry_point_and_hook_class_refer_to_each_other(self, answer: Any) -> None:
        assert answer["entry point"] == "render"
        assert answer["by entry point"] == answer["by class"] == ["RenderHook", "render"]

    def test_points_are_found_by_name_and_by_package(self, answer: Any) -> None:
        assert answer["points by name"] == answer["points by module"] == ["RenderPoints"]
        assert answer["other points"] == []


Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Return a function that adds metadata of a distribution to the path: `install("name", entry points, METADATA)`."""

    def put(name: str, entries: str, metadata: str | None = None) -> None:
        folder = tmp_path / f"{name}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Name: {name}\nVersion: 1.0\n" if metadata is None else metadata)
        (folder / "entry_points.txt").write_text(entries)
        monkeypatch.syspath_prepend(tmp_path)

    return put


class TestBrokenMetadata:
    def is_published(self, name: str) -> bool:
        return name in {entry.name for entry in entry_points(HOOKS_GROUP)}

    def test_package_without_a_name_is_skipped(self, install: Install, tmp_path: Path) -> None:
        install("good", "[hookbus.hooks]\ngood_one = nowhere:Good\n")
        install("bad", "[hookbus.hooks]\nbad_one = nowhere:Bad\n", metadata="")

        assert self.is_published("good_one")
        assert not self.is_published("bad_one")
        assert broken_distributions() == {str(tmp_path): "its METADATA file contains no name"}

    def test_malformed_entry_points_are_skipped_and_reported(self, install: Install) -> None:
        install("good", "[hookbus.hooks]\ngood_one = nowhere:Good\n")
        install("bad", "[hookbus.hooks]\nbad_one\n")

        assert self.is_published("good_one")
        assert broken_distributions() == {"bad": "its entry_points.txt is malformed"}
        with pytest.raises(
            PluginNotFoundError, match=r"The entry points of bad cannot be read: its entry_points.txt is malformed\."
        ):
            find_entry("bad_one")

    def test_unrelated_broken_package_is_not_reported(self, install: Install) -> None:
        install("stranger", "[console_scripts]\nbroken\n")

        assert broken_distributions() == {}


def test_import_error_of_a_point_names_its_package(install: Install) -> None:
    install("some-points", "[hookbus.points]\nafter_some_thing = nowhere_at_all:Spec\n")

    with pytest.raises(
        PluginImportError, match="some-points 1.0 publishes the point 'after_some_thing', but nowhere_at_all"
    ):
        load_point_specs({"after_some_thing"})


def test_points_of_a_package_for_another_version_are_not_imported(install: Install, tmp_path: Path) -> None:
    (tmp_path / "future_points.py").write_text("raise AssertionError('imported')\n")
    metadata = "Name: future-points\nVersion: 1.0\nRequires-Dist: hookbus>=99\n"
    install("future-points", "[hookbus.points]\nafter_future = future_points:Spec\n", metadata=metadata)

    with pytest.raises(PluginVersionError, match="future-points 1.0 requires hookbus>=99, but hookbus .* is installed"):
        load_point_specs({"after_future"})


def test_base_exception_at_import_is_an_error(install: Install, tmp_path: Path) -> None:
    (tmp_path / "skips_itself.py").write_text("class Skipped(BaseException): ...\n\nraise Skipped('not here')\n")
    install("skips", "[hookbus.hooks]\nskips = skips_itself:SkipsHook\n")

    with pytest.raises(PluginImportError, match="skips 1.0 publishes 'skips', but .* Skipped: not here"):
        load_entry(find_entry("skips"))


def test_module_as_a_hook_is_not_blocked_without_the_variable(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOOKBUS_BLOCK", raising=False)
    install("modules", "[hookbus.hooks]\na_module = types\n")

    assert find_entry("a_module").blocked is False


def test_package_names_are_normalized() -> None:
    assert normalize_name("Hookbus__EMA.x") == "hookbus-ema-x"


def test_results_are_cached_inside_the_context_only() -> None:
    calls: list[str] = []

    @cache_within_lookups
    def look_up(name: str) -> int:
        calls.append(name)
        return len(calls)

    with cached_lookups():
        assert (look_up("a"), look_up("b")) == (1, 2)
        with cached_lookups():
            assert look_up("a") == 1
        assert look_up("b") == 2
    assert look_up("a") == 3
