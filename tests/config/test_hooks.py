"""Tests of the construction of hooks from settings."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from pydantic import SecretStr

from hookbus import Hook, HookBus, HookConfig, Priority, hookimpl
from hookbus._config.hooks import HOOKS, Registry, build_hook, build_hooks, get_hook_class, hide_declared_settings
from hookbus._config.load import load_config
from hookbus.errors import ConfigError, PluginError, PluginNotFoundError, RegistrationError

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
    """Hook with another key for its instance name."""

    Config = NamingConfig


class KeywordHook(Hook):
    def __init__(self, interval: int = 50) -> None:
        self.interval = interval

    def before_train(self) -> None: ...


class DictHook(Hook):
    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.settings = config


class AnyHook(Hook):
    def __init__(self, **settings: Any) -> None:
        self.settings = settings


class Plain:
    def __init__(self, size: int = 1) -> None:
        self.size = size

    @hookimpl
    def before_run(self, run: Any) -> None:
        pass


class TestBuildHook:
    def test_hook_is_built_from_type_and_settings(self) -> None:
        hook = build_hook({"type": SizedHook, "size": 3, "name": "three"})
        assert (type(hook), hook.config.size, hook.name) == (SizedHook, 3, "three")

    def test_hook_instance_is_returned_unchanged(self) -> None:
        hook = SizedHook()
        assert build_hook(hook) is hook

    def test_settings_are_not_modified(self) -> None:
        settings = {"type": SizedHook, "size": 3}
        build_hook(settings)
        assert settings == {"type": SizedHook, "size": 3}

    def test_all_invalid_settings_are_listed(self) -> None:
        with pytest.raises(ConfigError) as caught:
            build_hook({"type": SizedHook, "siez": 1, "priority": "TOP"})
        assert [problem.split(": ")[1] for problem in caught.value.problems] == ["priority", "siez"]
        assert "Did you mean 'size'?" in caught.value.problems[1]

    @pytest.mark.parametrize("settings", [{}, {"size": 1}, {"type": 3}])
    def test_missing_type_is_an_error(self, settings: dict[str, Any]) -> None:
        with pytest.raises(ConfigError, match="the key 'type' is missing or not a string, got"):
            build_hook(settings)


class TestClassesWithTheirOwnInit:
    def test_settings_are_passed_as_keywords(self) -> None:
        assert build_hook({"type": KeywordHook, "interval": 7}).interval == 7
        assert build_hook({"type": KeywordHook}).interval == 50

    def test_common_keys_apply_without_a_config_argument(self) -> None:
        hook = build_hook({"type": KeywordHook, "interval": 7, "name": "k", "priority": "LOW", "on_error": "warn"})
        assert (hook.interval, hook.name, hook.config.priority, hook.config.on_error) == (7, "k", 70, "warn")
        bus = HookBus([hook])
        assert list(bus.hooks) == ["k"]

    def test_invalid_common_key_is_an_error(self) -> None:
        with pytest.raises(ConfigError, match="KeywordHook: priority: unknown priority level, got 'TOP'."):
            build_hook({"type": KeywordHook, "priority": "TOP"})

    def test_unknown_keyword_suggests_a_close_match(self) -> None:
        with pytest.raises(ConfigError, match="KeywordHook: intervall: unknown key. Did you mean 'interval'?"):
            build_hook({"type": KeywordHook, "intervall": 7})

    def test_config_argument_receives_a_dict(self) -> None:
        settings = {"type": DictHook, "name": "d"}
        hook = build_hook(settings)
        assert hook.settings == {"name": "d"}
        assert hook.name == "d"

    def test_var_keyword_init_receives_its_settings(self) -> None:
        hook = build_hook({"type": AnyHook, "size": 3, "name": "any"})
        assert (hook.settings, hook.name) == ({"size": 3}, "any")

    def test_plain_plugin_is_built_from_keywords(self) -> None:
        assert build_hook({"type": Plain, "size": 3}).size == 3

    def test_plain_plugin_has_no_common_keys(self) -> None:
        with pytest.raises(ConfigError, match="Plain: priority: unknown key. Available: size."):
            build_hook({"type": Plain, "priority": 3})

    def test_exception_in_init_is_an_error(self) -> None:
        class FullHook(Hook):
            def __init__(self, config: Any = None) -> None:
                raise OSError("the disk is full")

        with pytest.raises(ConfigError, match=r"FullHook: cannot be built: OSError: the disk is full \(.*line \d+\)\."):
            build_hook({"type": FullHook})

    def test_missing_required_keyword_is_an_error(self) -> None:
        class NeedyHook(Hook):
            def __init__(self, path: str) -> None:
                self.path = path

        with pytest.raises(ConfigError, match="NeedyHook: cannot be built: TypeError: .* missing .* 'path'"):
            build_hook({"type": NeedyHook})


class TestBuildHooks:
    def test_hooks_are_sorted_by_priority(self) -> None:
        hooks = build_hooks(
            [
                {"type": SizedHook, "name": "c", "priority": "LOWEST"},
                {"type": SizedHook, "name": "b"},
                {"type": SizedHook, "name": "a", "priority": 3},
                {"type": SizedHook, "name": "b2", "priority": 50},
            ]
        )
        assert [hook.name for hook in hooks] == ["a", "b", "b2", "c"]

    def test_default_priority_is_that_of_the_class(self) -> None:
        class EarlyHook(Hook):
            priority = Priority.HIGH

        plain = Plain()
        early, normal = EarlyHook(), SizedHook()
        assert build_hooks([plain, normal, early]) == [early, plain, normal]

    def test_disabled_hooks_are_omitted(self) -> None:
        assert build_hooks([{"type": SizedHook, "enabled": False}]) == []

    def test_mapping_sets_names_and_null_omits_a_hook(self) -> None:
        hooks = build_hooks({"big": {"type": SizedHook, "size": 9}, "gone": None})
        assert [(hook.name, hook.config.size) for hook in hooks] == [("big", 9)]

    def test_mapping_sets_the_instance_key_of_the_hook(self) -> None:
        first, second = build_hooks({"first": {"type": NamingHook, "name": "x"}, "second": {"type": NamingHook}})
        assert [(hook.name, hook.config.name) for hook in (first, second)] == [("first", "x"), ("second", None)]

    def test_mapping_is_not_modified(self) -> None:
        settings: dict[str, Any] = {"big": {"type": SizedHook, "size": 9}}
        before = copy.deepcopy(settings)
        build_hooks(settings)
        assert settings == before


@pytest.fixture
def registered() -> Iterator[None]:
    before = dict(HOOKS)
    yield
    HOOKS.clear()
    HOOKS.update(before)


class TestRegistry:
    def test_class_is_registered_by_name(self) -> None:
        registry = Registry()
        assert registry.register("mine")(SizedHook) is SizedHook
        registry.register_module()(DictHook)
        assert list(registry) == ["mine", "DictHook"]
        assert registry.get("mine") is SizedHook
        assert "DictHook" in registry
        assert registry.get("other") is None

    def test_duplicate_name_is_an_error(self) -> None:
        registry = Registry()
        registry.register("mine")(SizedHook)
        with pytest.raises(RegistrationError, match="'mine' already refers to .*SizedHook"):
            registry.register("mine")(DictHook)
        assert registry.get("mine") is SizedHook

    def test_force_replaces_a_class(self) -> None:
        registry = Registry()
        registry.register("mine")(SizedHook)
        registry.register("mine", force=True)(DictHook)
        assert registry.get("mine") is DictHook

    def test_reloaded_class_is_registered_again(self) -> None:
        registry = Registry()
        for _ in range(2):
            again = type("AgainHook", (Hook,), {"__module__": "script", "__qualname__": "AgainHook"})
            registry.register()(again)
        assert registry.get("AgainHook") is again

    def test_missing_parentheses_are_an_error(self) -> None:
        with pytest.raises(RegistrationError, match=r"@HOOKS.register\(\) or @HOOKS.register\('SizedHook'\)"):
            Registry().register(SizedHook)  # type: ignore[arg-type]

    def test_only_classes_are_registered(self) -> None:
        with pytest.raises(RegistrationError, match="HOOKS.register: should decorate a class, got 3."):
            Registry().register("three")(3)  # type: ignore[type-var]

    def test_registered_class_is_found(self, registered: None) -> None:
        HOOKS.register("mine")(SizedHook)
        assert type(build_hook({"type": "mine"})) is SizedHook

    def test_close_match_among_registered_names_is_suggested(self, registered: None) -> None:
        HOOKS.register("MyOwnHook")(SizedHook)
        with pytest.raises(PluginNotFoundError, match="Did you mean 'MyOwnHook'?"):
            get_hook_class("MyOwnHok")


class TestPaths:
    def test_hook_class_is_found_by_its_import_string(self, project: Project) -> None:
        hook = build_hook({"type": "parts:ProbeHook", "interval": 3})
        assert (type(hook).__name__, hook.config.interval) == ("ProbeHook", 3)

    def test_missing_name_is_an_error(self, project: Project) -> None:
        with pytest.raises(PluginNotFoundError) as caught:
            get_hook_class("parts:QuietHok")
        assert str(caught.value).startswith(
            "hook: 'parts:QuietHok' cannot be imported: parts has no attribute 'QuietHok'. Did you mean 'QuietHook'"
        )

    def test_other_class_is_an_error_and_not_instantiated(self, project: Project) -> None:
        project.write("class Bomb:\n    def __init__(self):\n        raise SystemExit('built')\n", "bombs_1.py")
        for path in ("pathlib:Path", "bombs_1:Bomb"):
            with pytest.raises(PluginError) as caught:
                build_hook({"type": path})
            assert str(caught.value) == (
                f"{path!r}: not a hook class. Subclass hookbus.Hook, or mark a method with @hookimpl."
            )

    def test_class_with_marked_methods_is_a_hook(self, project: Project) -> None:
        assert type(build_hook({"type": "parts:Plain"})).__name__ == "Plain"

    def test_abstract_class_is_an_error_with_the_missing_methods(self, project: Project) -> None:
        lines = ("import abc", "from hookbus import Hook", "class Base(Hook, abc.ABC):", "    @abc.abstractmethod")
        project.write("\n".join([*lines, "    def draw(self): ...", ""]), "bases_1.py")
        with pytest.raises(PluginError) as caught:
            get_hook_class("bases_1:Base")
        assert str(caught.value) == (
            "'bases_1:Base': an abstract class, without draw. Refer to a subclass that implements all methods."
        )

    def test_object_that_is_not_a_class_is_an_error(self, project: Project) -> None:
        with pytest.raises(PluginError, match="'parts:net': should refer to a hook class, got <function net at .*>."):
            get_hook_class("parts:net")


def test_bus_from_file_has_the_hooks_of_the_file(project: Project) -> None:
    file = project.write("hooks: {first: {type: 'parts:ProbeHook'}, off: {type: 'parts:ProbeHook', enabled: false}}")
    assert list(HookBus.from_file(file).hooks) == ["first"]


def test_bus_from_file_has_the_order_of_the_file(project: Project) -> None:
    assert HookBus.from_file(project.write("order: ascending\nhooks: []")).explain().order == "ascending"


def test_registration_error_has_a_location(project: Project) -> None:
    file = project.write("seed: 1\nhooks:\n  - type: 'parts:MisspelledHook'\n")
    with pytest.raises(ConfigError, match="^run.yaml:3:5: hooks.0: hook 'misspelled' .* before_trian_iter"):
        HookBus.from_file(file)


def test_single_hook_is_not_accepted_by_build_hooks() -> None:
    for configs in ("ema", {"type": "ema"}):
        with pytest.raises(
            ConfigError, match=r"build_hooks: should be a list or a mapping of names to settings, got .* Use build_hook"
        ):
            build_hooks(configs)


class LoginConfig(HookConfig):
    link: SecretStr | None = None
    links: dict[str, SecretStr] | None = None


class LoginHook(Hook):
    Config = LoginConfig


class KeywordLogin(Hook):
    def __init__(self, link: SecretStr, count: int = 1) -> None:
        super().__init__()


def test_settings_that_a_hook_declares_as_secrets_are_hidden() -> None:
    settings = {"type": f"{__name__}:LoginHook", "link": "S", "links": {"a": "S"}, "priority": 3}
    assert hide_declared_settings(settings) == {**settings, "link": "***", "links": {"a": "***"}}
    assert settings["link"] == "S"
    keywords = {"type": f"{__name__}:KeywordLogin", "link": "S", "count": 2}
    assert hide_declared_settings(keywords) == {**keywords, "link": "***"}


@pytest.mark.parametrize("type_", ["no_such_hook", "no_such:Hook", None, 3])
def test_settings_of_an_unknown_hook_declare_no_secrets(type_: Any) -> None:
    assert hide_declared_settings({"type": type_, "link": "S"}) == {"type": type_, "link": "S"}


def test_configuration_hides_the_declared_secrets_of_its_hooks_in_a_json_dump(project: Project) -> None:
    hook = {"type": f"{__name__}:LoginHook", "link": "S"}
    config = load_config({"hooks": [hook]})
    assert config.model_dump(mode="json")["hooks"] == [{**hook, "link": "***"}]
    assert config.hooks == [hook]
    (built,) = config.build_hooks()
    assert built.config.link.get_secret_value() == "S"
