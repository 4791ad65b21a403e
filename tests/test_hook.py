"""What a hook is: settings, names, the run it is in, and the small questions it may ask."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ImportString

from hookbus import BaseHook, Hook, HookBus, HookConfig, Priority, every, hookimpl, last
from hookbus.errors import ConfigError
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


def test_a_hook_is_built_by_keywords_by_a_mapping_or_by_its_config() -> None:
    given = {"text": "hi", "interval": 5}
    built = [
        GreetHook(text="hi", interval=5),
        GreetHook(given),
        GreetHook({"text": "hi"}, interval=5),
        GreetHook(GreetConfig(text="hi", interval=5)),
        GreetHook(GreetConfig(text="hi"), interval=5),
    ]
    assert {hook.config.model_dump_json() for hook in built} == {GreetConfig(text="hi", interval=5).model_dump_json()}
    assert given == {"text": "hi", "interval": 5}


def test_values_as_a_file_has_them_are_accepted() -> None:
    config = GreetHook({"sizes": [3, 4], "path": "a/b", "ratio": 1, "nested": {"depth": 2}}).config
    assert (config.sizes, config.path, config.ratio, config.nested.depth) == ((3, 4), Path("a/b"), 1.0, 2)


def test_python_objects_are_accepted_as_they_are() -> None:
    config = GreetHook(path=Path("a"), sizes=(5,), when=every(3) | last).config
    assert (config.path, config.sizes, config.when) == (Path("a"), (5,), every(3) | last)


def test_settings_cannot_be_changed_afterwards() -> None:
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
def test_a_wrong_setting_is_told_with_what_would_be_right(settings: dict[str, Any], problem: str) -> None:
    for build in (lambda: GreetHook(settings), lambda: GreetHook(**settings)):
        with pytest.raises(ConfigError) as caught:
            build()
        (found,) = caught.value.problems
        assert found.startswith(problem)


def test_a_hook_in_which_frequency_means_nothing_says_what_to_write_instead() -> None:
    class Config(HookConfig):
        no_frequency = "it has an interval: say interval: {value}."

    with pytest.raises(ConfigError, match=r"^Own: frequency: it has an interval: say interval: 3\.$"):
        type("Own", (Hook,), {"Config": Config})(frequency=3)
    assert type("Own", (Hook,), {"Config": Config})(frequency=1).config.frequency == 1


def test_a_path_that_cannot_be_imported_is_told_with_the_reason() -> None:
    class CallingConfig(HookConfig):
        call: ImportString[Any]

    class CallingHook(Hook):
        Config = CallingConfig

    with pytest.raises(ConfigError) as caught:
        CallingHook(call="nowhere.judge")
    assert caught.value.problems == [
        "CallingHook: call: should be a path package.module.name, but 'nowhere.judge' cannot be imported: "
        "No module named 'nowhere'."
    ]


def test_all_wrong_settings_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        GreetHook(interval=0, txt="hi", ratio="x")
    assert len(caught.value.problems) == 3


def test_a_setting_without_default_must_be_given() -> None:
    class Config(HookConfig):
        path: str

    class Needy(Hook):
        def __init__(self, **settings: Any) -> None:
            if settings:
                super().__init__(**settings)

    Needy.Config = Config
    with pytest.raises(ConfigError, match="Needy: path: required, but missing."):
        Hook.__init__(Needy())
    with pytest.raises(ConfigError, match="Needy: path: required, but missing."):
        HookBus([Needy()])
    assert Needy(path="x").config.path == "x"


@pytest.mark.parametrize("wrong", [5, "text", ["a"]])
def test_settings_are_a_mapping(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="GreetHook: invalid settings, got"):
        GreetHook(wrong)


def test_a_hook_that_never_called_super_has_the_default_settings() -> None:
    class Forgetful(GreetHook):
        def __init__(self, size: int) -> None:
            self.size = size

    hook = Forgetful(3)
    assert hook.config == GreetConfig()
    assert HookBus([hook]).hooks == {"forgetful": hook}


@pytest.mark.parametrize(
    ("given", "number"), [("LOW", 70), ("HIGHEST", 0), (Priority.VERY_LOW, 90), (-5, -5), (None, None)]
)
def test_a_priority_is_a_number_or_the_name_of_a_level(given: Any, number: int | None) -> None:
    found = GreetHook(priority=given).config.priority
    assert found == number
    assert type(found) in (int, type(None))


def test_the_levels_are_those_of_the_field() -> None:
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
def test_a_schedule_survives_in_what_is_recorded_of_the_settings(mode: Any) -> None:
    config = GreetConfig(when=(every(3) & last) | every(None))
    dumped = config.model_dump(mode=mode, exclude_unset=True)
    assert dumped == {"when": "((every(3) & last) | every(None))"}
    assert GreetHook(dumped).config == config
    assert GreetHook(HookConfig(when=every(3))).config.when == every(3)


def test_the_json_schema_shows_every_common_key() -> None:
    schema = HookConfig.model_json_schema()
    assert set(schema["properties"]) == {"name", "priority", "enabled", "when", "frequency", "on_error"}
    assert all(each["description"] for each in schema["properties"].values())
    assert schema["additionalProperties"] is False


def test_a_hook_shows_its_class_and_what_was_set() -> None:
    assert repr(GreetHook(text="hi", when=every(2))) == "GreetHook(when='every(2)', text='hi')"
    assert repr(GreetHook()) == "GreetHook()"


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
def test_the_default_name_is_the_class_in_snake_case(cls: str, name: str) -> None:
    assert snake_case(cls) == name
    assert type(cls, (Hook,), {})().name == name


def test_the_name_is_the_one_given_at_registration_else_in_the_settings() -> None:
    hook = GreetHook(name="mine")
    assert hook.name == "mine"
    HookBus().register(hook, "given")
    assert hook.name == "given"


def test_base_hook_is_the_same_class() -> None:
    assert BaseHook is Hook


def test_the_triggered_stages_are_the_points_in_the_order_of_a_run() -> None:
    class Many(GreetHook):
        def cleanup(self) -> None: ...
        def before_step(self) -> None: ...
        @hookimpl(specname="after_epoch")
        def tidy(self) -> None: ...
        @staticmethod
        def before_run() -> None: ...
        def helper(self) -> None: ...

        after_train = None

    stages = ["before_run", "before_train", "before_train_iter", "after_train_iter", "after_epoch", "cleanup"]
    assert Many().get_triggered_stages() == stages
    assert Hook().get_triggered_stages() == []


def test_a_hook_reads_the_metrics_whose_best_it_wants_and_adds_none_unless_it_says_so() -> None:
    class Keeping(Hook):
        @property
        def keeps_best_of(self) -> Any:
            return {"accuracy": None, "val/loss": "less"}

    assert (Hook().needs_metrics, Hook().gives_metrics) == ((), ())
    assert Keeping().needs_metrics == ("accuracy", "val/loss")


def test_a_hook_has_no_state_unless_it_says_so() -> None:
    hook = GreetHook()
    assert hook.state_dict() == {}
    hook.load_state_dict({})
    assert hook.should_trigger(5) is True


# -- questions -------------------------------------------------------------------------------------------------


class Counting(Hook):
    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, list[int]] = {name: [] for name in ("iters", "epochs", "last iter", "last epoch", "all")}

    def after_train_iter(self, run: Any) -> None:
        number = run.iter + 1
        for name, holds in (
            ("iters", self.every_n_iters(run, 3)),
            ("last iter", self.is_last_iter(run)),
            ("all", self.every_n_train_iters(run, 3)),
        ):
            if holds:
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
def test_questions_use_the_numbers_that_schedules_use(limit: Any, last_iter: list[int], last_epoch: list[int]) -> None:
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
