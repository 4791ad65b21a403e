"""Tests of `Hook` and `HookConfig`: settings, names, the run and the helper methods."""

from __future__ import annotations

import json
import re
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ImportString, SecretStr

from hookbus import BaseHook, Hook, HookBus, HookConfig, Priority, Run, every, hookimpl, last
from hookbus.checkpoint import schema
from hookbus.errors import ConfigError, HookError
from hookbus.hook import snake_case


class Nested(BaseModel):
    model_config = ConfigDict(extra="forbid")
    depth: int = 1


class GreetConfig(HookConfig):
    text: str = Field(default="hello", min_length=1)
    interval: int = Field(default=50, ge=1)
    sizes: tuple[int, ...] = (1, 2)
    ratio: float = 0.5
    path: Path | None = None
    mode: Literal["min", "max"] = "min"
    nested: Nested = Nested()


class GreetHook(Hook):
    Config = GreetConfig
    priority = Priority.LOW

    def before_train(self, run: Any, model: Any) -> None: ...

    @hookimpl(when=every("interval"))
    def after_train_iter(self, run: Any) -> None: ...


# -- settings --------------------------------------------------------------------------------------------------


def test_hook_accepts_keywords_a_mapping_or_its_config() -> None:
    settings = {"text": "hi", "interval": 5}
    built = [
        GreetHook(text="hi", interval=5),
        GreetHook(settings),
        GreetHook({"text": "hi"}, interval=5),
        GreetHook(GreetConfig(text="hi", interval=5)),
        GreetHook(GreetConfig(text="hi"), interval=5),
    ]
    assert {hook.config.model_dump_json() for hook in built} == {GreetConfig(text="hi", interval=5).model_dump_json()}
    assert settings == {"text": "hi", "interval": 5}


def test_hook_accepts_json_values() -> None:
    config = GreetHook({"sizes": [3, 4], "path": "a/b", "ratio": 1, "nested": {"depth": 2}}).config
    assert (config.sizes, config.path, config.ratio, config.nested.depth) == ((3, 4), Path("a/b"), 1.0, 2)


def test_hook_accepts_python_objects() -> None:
    config = GreetHook(path=Path("a"), sizes=(5,), when=every(3) | last).config
    assert (config.path, config.sizes, config.when) == (Path("a"), (5,), every(3) | last)


def test_settings_are_immutable() -> None:
    with pytest.raises(Exception, match="frozen"):
        GreetHook().config.text = "changed"


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"interva": 5}, "GreetHook: interva: unknown key. Did you mean 'interval'?"),
        ({"zzzzz": 5}, "GreetHook: zzzzz: unknown key. Available: enabled, frequency, interval, mode, name, nested, "),
        ({"interval": "5"}, "GreetHook: interval: should be a valid integer, got '5'."),
        ({"interval": 0}, "GreetHook: interval: should be greater than or equal to 1, got 0."),
        ({"interval": True}, "GreetHook: interval: should be a valid integer, got True."),
        ({"mode": "maximum"}, "GreetHook: mode: should be 'min' or 'max', got 'maximum'."),
        ({"nested": {"dept": 2}}, "GreetHook: nested.dept: unknown key. Did you mean 'depth'?"),
        ({"sizes": [1, "x"]}, "GreetHook: sizes.1: should be a valid integer, got 'x'."),
        ({"priority": "HGIH"}, "GreetHook: priority: unknown priority level, got 'HGIH'. Did you mean 'HIGH'?"),
        ({"priority": 1.5}, "GreetHook: priority: should be a valid integer"),
        ({"frequency": 0}, "GreetHook: frequency: should be greater than or equal to 1, got 0."),
        ({"on_error": "ignore"}, "GreetHook: on_error: should be 'raise', 'warn' or 'disable', got 'ignore'."),
        ({"when": "evry(3)"}, "GreetHook: when: invalid schedule, got 'evry(3)': unknown function evry. Did you mean"),
        ({"when": 50}, "GreetHook: when: expected a schedule as a string, got 50. Set every(50) or similar."),
        (
            {"when": {"every": 3}},
            "GreetHook: when: expected a schedule as a string, got {'every': 3}. Set every(50) or similar.",
        ),
        ({"name": ""}, "GreetHook: name: should have at least 1 character, got ''."),
    ],
    ids=str,
)
def test_invalid_setting_raises_with_the_expected_value(settings: dict[str, Any], problem: str) -> None:
    for build in (lambda: GreetHook(settings), lambda: GreetHook(**settings)):
        with pytest.raises(ConfigError) as caught:
            build()
        (message,) = caught.value.problems
        assert message.startswith(problem)


def test_unsupported_schedule_raises_with_the_alternative() -> None:
    class Config(HookConfig):
        when_error = "updates are counted by `interval`. Set `interval` instead."

    message = "Own: when: not supported, got every(3): updates are counted by `interval`. Set `interval` instead."
    with pytest.raises(ConfigError, match=re.escape(message)):
        type("Own", (Hook,), {"Config": Config})(when="every(3)")


def test_unsupported_frequency_raises_with_the_alternative() -> None:
    class Config(HookConfig):
        frequency_error = "updates are counted by `interval`. Set `interval: {value}`."

    message = "Own: frequency: not supported, got 3: updates are counted by `interval`. Set `interval: 3`."
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        type("Own", (Hook,), {"Config": Config})(frequency=3)
    assert type("Own", (Hook,), {"Config": Config})(frequency=1).config.frequency == 1


def test_failed_import_of_a_setting_raises_with_the_reason() -> None:
    class CallingConfig(HookConfig):
        call: ImportString[Any]

    class CallingHook(Hook):
        Config = CallingConfig

    with pytest.raises(ConfigError) as caught:
        CallingHook(call="nowhere.validate")
    (problem,) = caught.value.problems
    assert problem.startswith(
        "CallingHook: call: should be an import string package.module.name, but 'nowhere.validate' cannot be imported: "
        "No module named 'nowhere"  # pydantic names the package or the module, depending on its version
    )


def test_all_invalid_settings_are_reported_together() -> None:
    with pytest.raises(ConfigError) as caught:
        GreetHook(interval=0, txt="hi", ratio="x")
    assert len(caught.value.problems) == 3


@pytest.mark.parametrize("config", [BaseModel, dict, HookConfig(), None])
def test_config_that_is_no_subclass_of_hook_config_raises(config: Any) -> None:
    with pytest.raises(HookError, match=r"Wrong.Config: should be a subclass of hookbus.HookConfig, got "):
        type("Wrong", (Hook,), {"Config": config})


def test_missing_required_setting_raises() -> None:
    class Config(HookConfig):
        path: str

    class Requiring(Hook):
        def __init__(self, **settings: Any) -> None:
            if settings:
                super().__init__(**settings)

    Requiring.Config = Config
    with pytest.raises(ConfigError, match="Requiring: path: required, but missing."):
        Hook.__init__(Requiring())
    with pytest.raises(ConfigError, match="Requiring: path: required, but missing."):
        HookBus([Requiring()])
    assert Requiring(path="x").config.path == "x"


@pytest.mark.parametrize("wrong", [5, "text", ["a"]])
def test_settings_of_another_type_raise(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="GreetHook: invalid settings, got"):
        GreetHook(wrong)


def test_hook_without_super_init_has_default_settings() -> None:
    class NoSuperInit(GreetHook):
        def __init__(self, size: int) -> None:
            self.size = size

    hook = NoSuperInit(3)
    assert hook.config == GreetConfig()
    assert HookBus([hook]).hooks == {"no_super_init": hook}


@pytest.mark.parametrize(
    ("value", "number"), [("LOW", 70), ("HIGHEST", 0), (Priority.VERY_LOW, 90), (-5, -5), (None, None)]
)
def test_priority_is_an_integer_or_the_name_of_a_level(value: Any, number: int | None) -> None:
    priority = GreetHook(priority=value).config.priority
    assert priority == number
    assert type(priority) in (int, type(None))


def test_priority_levels_have_the_documented_values() -> None:
    assert {level.name: int(level) for level in Priority} == {
        "HIGHEST": 0,
        "VERY_HIGH": 10,
        "HIGH": 30,
        "ABOVE_NORMAL": 40,
        "NORMAL": 50,
        "BELOW_NORMAL": 60,
        "LOW": 70,
        "VERY_LOW": 90,
        "LOWEST": 100,
    }


@pytest.mark.parametrize("mode", ["python", "json"])
def test_schedule_survives_serialization_of_the_settings(mode: Any) -> None:
    config = GreetConfig(when=(every(3) & last) | every(None))
    dumped = config.model_dump(mode=mode, exclude_unset=True)
    assert dumped == {"when": "((every(3) & last) | every(None))"}
    assert GreetHook(dumped).config == config
    assert GreetHook(HookConfig(when=every(3))).config.when == every(3)


def test_json_schema_contains_every_common_key() -> None:
    schema = HookConfig.model_json_schema()
    assert set(schema["properties"]) == {"name", "priority", "enabled", "when", "frequency", "on_error"}
    assert all(field["description"] for field in schema["properties"].values())
    assert schema["additionalProperties"] is False


def test_repr_contains_the_class_and_the_set_fields() -> None:
    assert repr(GreetHook(text="hi", when=every(2))) == "GreetHook(when='every(2)', text='hi')"
    assert repr(GreetHook()) == "GreetHook()"


def test_repr_and_the_fields_for_checkpoints_contain_no_secrets() -> None:
    class LoginConfig(HookConfig):
        link: SecretStr
        api_key: str
        url: str
        call: Any = None

    class Login(Hook):
        Config = LoginConfig

    hook = Login(link="abc", api_key="abc", url="https://me:abc@host", call=len)

    assert repr(hook) == ("Login(link='***', api_key='***', url='https://me:***@host', call='<built-in function len>')")
    assert json.loads(hook.config.set_fields_json)["link"] == "***"
    assert hook.config.link.get_secret_value() == hook.config.api_key == "abc"


# -- names and the run -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cls", "name"),
    [
        ("GreetHook", "greet"),
        ("EMAHook", "ema"),
        ("DetVisualizationHook", "det_visualization"),
        ("YOLOXLrUpdaterHook", "yolox_lr_updater"),
        ("Hook", "hook"),
        ("Watch2Things", "watch2_things"),
        ("Simple", "simple"),
    ],
)
def test_default_name_is_the_class_name_in_snake_case(cls: str, name: str) -> None:
    assert snake_case(cls) == name
    assert type(cls, (Hook,), {})().name == name


def test_registration_name_overrides_the_name_in_the_settings() -> None:
    hook = GreetHook(name="mine")
    assert hook.name == "mine"
    HookBus().register(hook, "registered")
    assert hook.name == "registered"


def test_base_hook_is_hook() -> None:
    assert BaseHook is Hook


def test_triggered_stages_are_points_in_the_order_of_a_run() -> None:
    class Multiple(GreetHook):
        def cleanup(self) -> None: ...
        def before_step(self) -> None: ...
        @hookimpl(specname="after_epoch")
        def tidy(self) -> None: ...
        @staticmethod
        def before_run() -> None: ...
        def helper(self) -> None: ...

        after_train = None

    stages = ["before_run", "before_train", "before_train_iter", "after_train_iter", "after_epoch", "cleanup"]
    assert Multiple().get_triggered_stages() == stages
    assert Hook().get_triggered_stages() == []


def test_required_metrics_default_to_the_tracked_metrics() -> None:
    class Tracking(Hook):
        @property
        def best_metrics(self) -> Any:
            return {"accuracy": None, "val/loss": "less"}

    assert (Hook().required_metrics, Hook().provided_metrics) == ((), ())
    assert Tracking().required_metrics == ("accuracy", "val/loss")


def test_default_state_is_empty() -> None:
    hook = GreetHook()
    assert hook.state_dict() == {}
    hook.load_state_dict({})


def test_should_trigger_is_due_at_multiples_of_the_frequency() -> None:
    assert [step for step in range(9) if GreetHook(frequency=3).should_trigger(step)] == [2, 5, 8]
    assert all(map(GreetHook().should_trigger, range(3)))


# -- helper methods --------------------------------------------------------------------------------------------


class Counting(Hook):
    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, list[int]] = {name: [] for name in ("iters", "epochs", "last iter", "last epoch", "all")}

    def after_train_iter(self, run: Any) -> None:
        number = run.iter + 1
        for name, is_due in (
            ("iters", self.every_n_iters(run, 3)),
            ("last iter", self.is_last_iter(run)),
            ("all", self.every_n_train_iters(run, 3)),
        ):
            if is_due:
                self.seen[name].append(number)
        assert not self.every_n_iters(run, 0)
        assert not self.every_n_epochs(run, -1)

    def after_epoch(self, run: Any) -> None:
        if self.every_n_epochs(run, 2):
            self.seen["epochs"].append(run.epoch + 1)
        if self.is_last_epoch(run):
            self.seen["last epoch"].append(run.epoch + 1)


@pytest.mark.parametrize(
    ("limit", "last_iter", "last_epoch"), [({"epochs": 5}, [20], [5]), ({"iterations": 18}, [18], []), ({}, [], [])]
)
def test_helper_methods_count_like_schedules(limit: Any, last_iter: list[int], last_epoch: list[int]) -> None:
    bus: Any = HookBus([hook := Counting()])
    with bus.run(train_loader=range(4), **limit) as run:
        for _ in range(5):
            bus.emit("before_train_epoch")
            for _ in range(4):
                bus.emit("after_train_iter")
                if run.should_stop:
                    break
            bus.emit("after_train_epoch")
    done = run.iters_done
    assert hook.seen == {
        "iters": [n for n in range(1, done + 1) if n % 3 == 0],
        "all": [n for n in range(1, done + 1) if n % 3 == 0],
        "epochs": [2, 4],
        "last iter": last_iter,
        "last epoch": last_epoch,
    }


def test_other_hooks_of_a_class_include_subclasses_and_not_the_hook_itself() -> None:
    class Common(Hook):
        pass

    class Special(Common):
        pass

    hook, second, special = Common(name="a"), Common(name="b"), Special(name="c")
    with HookBus([hook, second, special, Hook(name="d")]).run(epochs=1) as run:
        assert hook.find_others(run, Common) == {"b": second, "c": special}
        assert special.find_others(run, Special) == {}


class TestUniqueHooks:
    class Writes(Hook):
        class Config(HookConfig):
            path: str | None = None

        def check(self, run: Run) -> None:
            get_path: Any = attrgetter("config.path")
            self.check_unique(run, "writes to it", "Set another `path`.", setting="path", get_value=get_path)

    def test_equal_values_of_two_hooks_are_refused_with_both_names(self) -> None:
        bus = HookBus([self.Writes(name="a", path="x"), self.Writes(name="b", path="x")])

        with pytest.raises(ConfigError, match="'a'.* path: hook 'b' also writes to it. Set another `path`."), bus.run():
            pass

    @pytest.mark.parametrize("paths", [("x", "y"), (None, None)])
    def test_different_and_missing_values_are_accepted(self, paths: tuple[str | None, str | None]) -> None:
        hooks = [self.Writes(name=name, path=path) for name, path in zip("ab", paths, strict=True)]

        with HookBus(hooks).run() as run:
            assert list(run.bus.hooks) == ["a", "b"]

    def test_class_without_values_accepts_one_hook(self) -> None:
        class Single(Hook):
            def check(self, run: Run) -> None:
                self.check_unique(run, "sets the rate")

        bus = HookBus([Single(name="a"), Single(name="b")])

        with pytest.raises(ConfigError, match="hook 'b' also sets the rate. Remove one of them."), bus.run():
            pass


def test_state_that_does_not_fit_the_schema_is_refused() -> None:
    class Counter(Hook):
        state_schema = schema.record({"count": schema.integer()})

    Counter().check_state({"count": 3, "more": "of a later version"})
    with pytest.raises(ValueError, match=r"state\.count: expected an integer from 0 to \d+, got -1"):
        Counter().check_state({"count": -1})


class SwitchedConfig(HookConfig):
    effective_with = (("path", "to_file", "to_link"),)

    to_file: bool = False
    to_link: bool = False
    path: str = "a.log"


@pytest.mark.parametrize(
    "settings", [{}, {"path": "a.log"}, {"path": "b", "to_file": True}, {"path": "b", "to_link": True}]
)
def test_setting_with_effect_is_accepted(settings: dict[str, Any]) -> None:
    SwitchedConfig(**settings)


def test_setting_without_effect_is_an_error_with_the_settings_that_it_requires() -> None:
    class SwitchedHook(Hook):
        Config = SwitchedConfig

    with pytest.raises(ConfigError) as error:
        SwitchedHook(path="b")
    assert str(error.value).endswith(
        "path: no effect without `to_file` or `to_link`, got 'b'. Set `to_file` or `to_link`, or remove `path`."
    )
