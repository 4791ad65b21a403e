"""From settings to hooks."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from hookbus import Hook, HookBus, HookConfig, Priority, hookimpl
from hookbus.errors import ConfigError, PluginError, PluginNotFound, RegistrationError
from hookbus.runfile.builder import HOOKS, Registry, build_hook, build_hooks, hook_class

if TYPE_CHECKING:
    from tests.conftest import Project


class SizedConfig(HookConfig):
    size: int = 1


class SizedHook(Hook):
    Config = SizedConfig


class NamingConfig(HookConfig):
    instance_key: ClassVar[str] = "instance"

    instance: str | None = None


class NamingHook(Hook):
    """A hook whose `name` names something else."""

    Config = NamingConfig


class KeywordHook(Hook):
    def __init__(self, interval: int = 50) -> None:
        self.interval = interval


class DictHook(Hook):
    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.given = config


class AnyHook(Hook):
    def __init__(self, **given: Any) -> None:
        self.given = given


class Plain:
    def __init__(self, size: int = 1) -> None:
        self.size = size

    @hookimpl
    def before_run(self, run: Any) -> None:
        pass


class TestBuildingOne:
    def test_a_class_or_a_name_and_its_settings(self) -> None:
        hook = build_hook({"type": SizedHook, "size": 3, "name": "three"})
        assert (type(hook), hook.config.size, hook.name) == (SizedHook, 3, "three")

    def test_a_built_hook_is_returned_as_it_is(self) -> None:
        hook = SizedHook()
        assert build_hook(hook) is hook

    def test_the_given_settings_are_not_changed(self) -> None:
        settings = {"type": SizedHook, "size": 3}
        build_hook(settings)
        assert settings == {"type": SizedHook, "size": 3}

    def test_every_wrong_setting_is_told(self) -> None:
        with pytest.raises(ConfigError) as caught:
            build_hook({"type": SizedHook, "siez": 1, "priority": "TOP"})
        assert [problem.split(": ")[1] for problem in caught.value.problems] == ["priority", "siez"]
        assert "Did you mean 'size'?" in caught.value.problems[1]

    @pytest.mark.parametrize("settings", [{}, {"size": 1}, {"type": 3}])
    def test_a_missing_type_is_told(self, settings: dict[str, Any]) -> None:
        with pytest.raises(ConfigError, match="the type is missing in"):
            build_hook(settings)


class TestClassesWithTheirOwnInit:
    def test_keywords_are_given_as_keywords(self) -> None:
        assert build_hook({"type": KeywordHook, "interval": 7}).interval == 7
        assert build_hook({"type": KeywordHook}).interval == 50

    def test_common_keys_reach_a_hook_whose_init_knows_nothing_of_them(self) -> None:
        hook = build_hook({"type": KeywordHook, "interval": 7, "name": "k", "priority": "LOW", "on_error": "warn"})
        assert (hook.interval, hook.name, hook.config.priority, hook.config.on_error) == (7, "k", 70, "warn")
        bus = HookBus([hook])
        assert list(bus.hooks) == ["k"]

    def test_a_wrong_common_key_is_told(self) -> None:
        with pytest.raises(ConfigError, match="KeywordHook: priority: unknown priority level, got 'TOP'."):
            build_hook({"type": KeywordHook, "priority": "TOP"})

    def test_an_unknown_keyword_is_told_with_a_near_one(self) -> None:
        with pytest.raises(ConfigError, match="KeywordHook: intervall: unknown key. Did you mean 'interval'?"):
            build_hook({"type": KeywordHook, "intervall": 7})

    def test_a_config_argument_gets_a_dict_of_its_own(self) -> None:
        settings = {"type": DictHook, "name": "d"}
        hook = build_hook(settings)
        assert hook.given == {"name": "d"}
        assert hook.name == "d"

    def test_an_init_that_takes_anything_gets_what_is_its_own(self) -> None:
        hook = build_hook({"type": AnyHook, "size": 3, "name": "any"})
        assert (hook.given, hook.name) == ({"size": 3}, "any")

    def test_a_plain_plugin_is_built_from_its_keywords(self) -> None:
        assert build_hook({"type": Plain, "size": 3}).size == 3

    def test_a_plain_plugin_has_no_common_keys(self) -> None:
        with pytest.raises(ConfigError, match="Plain: priority: unknown key. Available: size."):
            build_hook({"type": Plain, "priority": 3})

    def test_what_an_init_raises_is_told(self) -> None:
        class FullHook(Hook):
            def __init__(self, config: Any = None) -> None:
                raise OSError("the disk is full")

        with pytest.raises(ConfigError, match=r"FullHook: cannot be built: OSError: the disk is full \(.*line \d+\)\."):
            build_hook({"type": FullHook})

    def test_a_required_keyword_is_told(self) -> None:
        class NeedyHook(Hook):
            def __init__(self, path: str) -> None:
                self.path = path

        with pytest.raises(ConfigError, match="NeedyHook: cannot be built: TypeError: .* missing .* 'path'"):
            build_hook({"type": NeedyHook})


class TestBuildingSeveral:
    def test_they_come_in_the_order_of_their_priorities(self) -> None:
        hooks = build_hooks(
            [
                {"type": SizedHook, "name": "c", "priority": "LOWEST"},
                {"type": SizedHook, "name": "b"},
                {"type": SizedHook, "name": "a", "priority": 3},
                {"type": SizedHook, "name": "b2", "priority": 50},
            ]
        )
        assert [hook.name for hook in hooks] == ["a", "b", "b2", "c"]

    def test_the_class_decides_where_the_settings_say_nothing(self) -> None:
        class EarlyHook(Hook):
            priority = Priority.HIGH

        plain = Plain()
        early, normal = EarlyHook(), SizedHook()
        assert build_hooks([plain, normal, early]) == [early, plain, normal]

    def test_those_that_are_switched_off_are_left_out(self) -> None:
        assert build_hooks([{"type": SizedHook, "enabled": False}]) == []

    def test_a_mapping_gives_names_and_none_leaves_out(self) -> None:
        hooks = build_hooks({"big": {"type": SizedHook, "size": 9}, "gone": None})
        assert [(hook.name, hook.config.size) for hook in hooks] == [("big", 9)]

    def test_a_hook_with_a_name_of_its_own_meaning_is_still_named_by_the_mapping(self) -> None:
        first, second = build_hooks({"first": {"type": NamingHook, "name": "x"}, "second": {"type": NamingHook}})
        assert [(hook.name, hook.config.name) for hook in (first, second)] == [("first", "x"), ("second", None)]

    def test_the_given_mapping_is_not_changed(self) -> None:
        settings: dict[str, Any] = {"big": {"type": SizedHook, "size": 9}}
        before = copy.deepcopy(settings)
        build_hooks(settings)
        assert settings == before


@pytest.fixture
def registered() -> Iterator[None]:
    before = dict(HOOKS._classes)
    yield
    HOOKS._classes = before


class TestRegistry:
    def test_a_class_is_registered_under_a_name_or_its_own(self) -> None:
        registry = Registry()
        assert registry.register("mine")(SizedHook) is SizedHook
        registry.register_module()(DictHook)
        assert list(registry) == ["mine", "DictHook"]
        assert registry.get("mine") is SizedHook
        assert "DictHook" in registry
        assert registry.get("other") is None

    def test_a_name_is_given_once(self) -> None:
        registry = Registry()
        registry.register("mine")(SizedHook)
        with pytest.raises(RegistrationError, match="'mine' is the name of .*SizedHook already"):
            registry.register("mine")(DictHook)
        assert registry.get("mine") is SizedHook

    def test_force_replaces(self) -> None:
        registry = Registry()
        registry.register("mine")(SizedHook)
        registry.register("mine", force=True)(DictHook)
        assert registry.get("mine") is DictHook

    def test_a_script_that_runs_again_registers_again(self) -> None:
        registry = Registry()
        for _ in range(2):
            again = type("AgainHook", (Hook,), {"__module__": "script", "__qualname__": "AgainHook"})
            registry.register()(again)
        assert registry.get("AgainHook") is again

    def test_parentheses_are_needed(self) -> None:
        with pytest.raises(RegistrationError, match=r"@HOOKS.register\(\) or @HOOKS.register\('SizedHook'\)"):
            Registry().register(SizedHook)  # type: ignore[arg-type]

    def test_only_classes_are_registered(self) -> None:
        with pytest.raises(RegistrationError, match="HOOKS.register is for classes, not for 3."):
            Registry().register("three")(3)  # type: ignore[type-var]

    def test_a_registered_class_is_found_by_run_files_and_build_hook(self, registered: None) -> None:
        HOOKS.register("mine")(SizedHook)
        assert type(build_hook({"type": "mine"})) is SizedHook

    def test_a_near_registered_name_is_suggested(self, registered: None) -> None:
        HOOKS.register("MyOwnHook")(SizedHook)
        with pytest.raises(PluginNotFound, match="Did you mean 'MyOwnHook'?"):
            hook_class("MyOwnHok")


class TestPaths:
    def test_a_class_of_ones_own_is_named_by_its_path(self, project: Project) -> None:
        hook = build_hook({"type": "parts:ProbeHook", "interval": 3})
        assert (type(hook).__name__, hook.config.interval) == ("ProbeHook", 3)

    def test_a_path_that_leads_nowhere_is_told(self, project: Project) -> None:
        with pytest.raises(PluginNotFound) as caught:
            hook_class("parts:QuietHok")
        assert str(caught.value).startswith(
            "hook: 'parts:QuietHok' cannot be imported: parts has no 'QuietHok'. Did you mean 'QuietHook'"
        )

    def test_a_path_to_a_class_that_is_no_hook_is_told_and_nothing_is_built(self, project: Project) -> None:
        project.write("class Bomb:\n    def __init__(self):\n        raise SystemExit('built')\n", "bombs_1.py")
        for path in ("pathlib:Path", "bombs_1:Bomb"):
            with pytest.raises(PluginError) as caught:
                build_hook({"type": path})
            assert str(caught.value) == (
                f"{path!r} is no hook class: it neither subclasses hookbus.Hook nor has a method marked by @hookimpl."
            )

    def test_a_class_with_marked_methods_is_one(self, project: Project) -> None:
        assert type(build_hook({"type": "parts:Plain"})).__name__ == "Plain"

    def test_a_path_to_something_else_is_told(self, project: Project) -> None:
        with pytest.raises(PluginError, match="'parts:net' is <function net at .*>; a hook is named by its class."):
            hook_class("parts:net")


def test_a_bus_is_built_from_the_hooks_of_a_file_alone(project: Project) -> None:
    file = project.write("hooks: {first: {type: 'parts:ProbeHook'}, off: {type: 'parts:ProbeHook', enabled: false}}")
    assert list(HookBus.from_file(file).hooks) == ["first"]


def test_a_bus_takes_the_order_of_the_file(project: Project) -> None:
    assert HookBus.from_file(project.write("order: ascending\nhooks: []")).explain().order == "ascending"


def test_a_hook_that_the_bus_refuses_is_told_with_its_line(project: Project) -> None:
    file = project.write("seed: 1\nhooks:\n  - type: 'parts:MisspelledHook'\n")
    with pytest.raises(ConfigError, match="^run.yaml:3:5: hooks.0: hook 'misspelled' .* before_trian_iter"):
        HookBus.from_file(file)


def test_one_hook_in_the_place_of_several_is_told() -> None:
    for given in ("ema", {"type": "ema"}):
        with pytest.raises(ConfigError, match=r"build_hooks takes a list; for one hook say build_hook\("):
            build_hooks(given)
