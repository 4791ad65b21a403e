"""Tests of deprecated settings of hooks: each user is warned once, at the line that sets them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import typing_extensions
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from hookbus import Hook, HookConfig, build_hook, deprecated
from hookbus._utils.settings import ALL_SETTINGS, format_validation_error
from hookbus.errors import ConfigError, HookDeprecationWarning
from hookbus.testing import fake_training


class Curve(BaseModel):
    """Nested settings."""

    power: float = Field(default=1.0, deprecated="Set `exponent`")
    exponent: float = 1.0


class BlendConfig(HookConfig):
    """Settings with each form of deprecation."""

    decay: float | None = Field(
        default=None, deprecated=deprecated(removed_in="acme-blend 2.0", replacement="`momentum` (1 - decay)")
    )
    momentum: float = 0.1
    warm_up: Annotated[int, deprecated(removed_in="acme-blend 2.0")] = 0
    rate: int = Field(default=1, deprecated=True)
    limit: int = Field(default=1, deprecated=typing_extensions.deprecated("It is always 1."))
    curves: dict[str, list[Curve]] = Field(default={})
    start: int = Field(default=0, alias="from", deprecated="Set `begin`.")

    @model_validator(mode="before")
    @classmethod
    def _convert(cls, data: dict[str, Any]) -> dict[str, Any]:
        return {**data, "momentum": 1 - data["decay"]} if data.get("decay") is not None else data


class BlendHook(Hook):
    """Hook that reads a deprecated setting when it is built and at every iteration."""

    Config = BlendConfig

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self.decay = self.config.decay

    def after_train_iter(self) -> None:
        self.decay = self.config.decay


MESSAGE = "BlendHook: decay: deprecated and will be removed in acme-blend 2.0. Use `momentum` (1 - decay) instead."


@pytest.fixture
def caught() -> Iterator[list[warnings.WarningMessage]]:
    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter("always")
        yield records


def test_user_of_a_setting_is_warned_once(caught: list[warnings.WarningMessage], tmp_path: Path) -> None:
    hook = BlendHook(decay=0.75)
    fake_training([hook], epochs=1, batches=3, work_dir=tmp_path)

    assert [(str(record.message), record.category) for record in caught] == [(MESSAGE, HookDeprecationWarning)]
    assert (hook.config.momentum, hook.decay) == (0.25, 0.75)


def test_defaults_cause_no_warning() -> None:
    hook = BlendHook(momentum=0.5)

    assert (hook.config.decay, hook.config.rate, hook.config.limit) == (None, 1, 1)
    assert repr(hook) == "BlendHook(momentum=0.5)"


def test_each_form_of_deprecation_has_a_message(caught: list[warnings.WarningMessage]) -> None:
    hook = BlendHook({"warm_up": 3, "rate": 2, "limit": 1, "curves": {"a": [{}, {"power": 2.0}]}, "from": 4})

    assert [str(record.message) for record in caught] == [
        "BlendHook: warm_up: deprecated and will be removed in acme-blend 2.0. It has no replacement.",
        "BlendHook: rate: deprecated.",
        "BlendHook: limit: deprecated: It is always 1.",
        "BlendHook: curves.a.1.power: deprecated: Set `exponent`.",
        "BlendHook: from: deprecated: Set `begin`.",
    ]
    assert hook.config.start == 4


@pytest.mark.parametrize("build", ["keywords", "mapping", "config", "build_hook"])
def test_warning_is_located_at_the_caller(caught: list[warnings.WarningMessage], build: str) -> None:
    config = BlendConfig(decay=0.5)
    builds = {
        "keywords": lambda: BlendHook(decay=0.5),
        "mapping": lambda: BlendHook({"decay": 0.5}),
        "config": lambda: BlendHook(config),
        "build_hook": lambda: build_hook({"type": BlendHook, "decay": 0.5}),
    }
    builds[build]()

    ((filename, lineno),) = [(record.filename, record.lineno) for record in caught]
    assert (filename, lineno) == (__file__, builds[build].__code__.co_firstlineno)


def test_warning_that_is_an_error_has_the_message() -> None:
    with pytest.raises(HookDeprecationWarning) as error:
        build_hook({"type": BlendHook, "decay": 0.75})
    assert str(error.value) == MESSAGE


def test_common_setting_of_a_hook_with_keywords_may_be_deprecated(caught: list[warnings.WarningMessage]) -> None:
    class KeywordConfig(HookConfig):
        frequency: int | None = Field(default=None, deprecated="Set `interval`.")

    class KeywordHook(Hook):
        Config = KeywordConfig

        def __init__(self, interval: int = 1) -> None:
            super().__init__()
            self.interval = interval

    build_hook({"type": KeywordHook, "interval": 2, "frequency": 3})

    assert [str(record.message) for record in caught] == ["KeywordHook: frequency: deprecated: Set `interval`."]


def test_schema_marks_the_setting() -> None:
    properties = BlendConfig.model_json_schema()["properties"]

    assert [name for name, schema in properties.items() if schema.get("deprecated")] == [
        *("decay", "warm_up", "rate", "limit", "from")
    ]


def test_invalid_value_is_an_error_without_a_warning() -> None:
    with pytest.raises(ConfigError, match="BlendHook: warm_up: should be a valid integer"):
        BlendHook(warm_up="often")


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    width: int = 3


class Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    rate: float = Field(default=0.1, gt=0)
    section: Section = Section()
    steps: dict[int, int] = {}
    mode: bool | Literal["fast"] | list[int] = False
    name: str

    @model_validator(mode="after")
    def _check_name(self) -> Settings:
        if self.name == "none":
            raise ValueError("a name is none.")
        return self


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({}, ("name", "required, but missing.")),
        ({"name": "a", "rate": -1.0}, ("rate", "should be greater than 0, got -1.0.")),
        ({"name": "a", "rat": 1.0}, ("rat", "unknown key. Did you mean 'rate'?")),
        ({"name": "a", "width": 1}, ("width", "unknown key. `width` belongs in `section`.")),
        ({"name": "a", "section": {"name": "b"}}, ("section.name", "unknown key. `name` belongs at the top level.")),
        ({"name": "a", "section": {"width": "b"}}, ("section.width", "should be a valid integer, got 'b'.")),
        (
            {"name": "a", "mode": "yes"},
            ("mode", "should be a valid boolean or 'fast' or a valid list, got 'yes'."),
        ),
        ({"name": "a", "mode": [1, "x"]}, ("mode.1", "should be a valid integer, got 'x'.")),
        ({"name": "a", "steps": {1: "x"}}, ("steps.1", "should be a valid integer, got 'x'.")),
        ({"name": "none"}, (ALL_SETTINGS, "a name is none.")),
    ],
)
def test_validation_error_is_a_location_and_a_message(settings: dict[str, Any], problem: tuple[str, str]) -> None:
    with pytest.raises(ValidationError) as caught:
        Settings.model_validate(settings)

    assert format_validation_error(caught.value, Settings, settings) == [problem]


class ObjectsConfig(HookConfig):
    span: slice | None = None
    spans: list[slice] = Field(default=[])
    length: slice | int = 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"span": "1:2"}, "span: should be a Python object of type slice | None, got '1:2'."),
        ({"spans": ["1:2"]}, "spans.0: should be a Python object, got '1:2'."),
        ({"length": "1"}, "length: should be a Python object or a valid integer, got '1'."),
    ],
)
def test_text_for_a_python_object_is_an_error_with_its_type(settings: dict[str, Any], message: str) -> None:
    class ObjectsHook(Hook):
        Config = ObjectsConfig

    with pytest.raises(ConfigError) as caught:
        ObjectsHook(settings)

    assert caught.value.problems == [f"ObjectsHook: {message}"]
