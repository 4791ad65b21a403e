"""Tests that error messages of run files and hooks contain no secrets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from hookbus._config.hooks import build_hook
from hookbus._config.load import load_config
from hookbus.errors import ConfigError
from hookbus.trainer.from_file import trainer_from_file
from hookbus.trainer.trainer import Trainer

if TYPE_CHECKING:
    from tests.conftest import Project

NOTES = """
from pydantic import Field, SecretStr, field_validator, model_validator
from hookbus import Hook, HookConfig


class NoteConfig(HookConfig):
    link: SecretStr = SecretStr("")
    short: SecretStr = Field(default=SecretStr(""), max_length=3)
    api_key: int = 0
    mode: int = 0
    tag: str = ""

    @field_validator("tag")
    @classmethod
    def check_tag(cls, tag):
        if tag.startswith("bad"):
            raise ValueError(f"bad tag {tag!r}.")
        return tag

    @model_validator(mode="after")
    def check_mode(self):
        if self.mode == 5:
            raise ValueError(f"no mode for {self.link.get_secret_value()}.")
        return self


class Note(Hook):
    Config = NoteConfig


class Login(Hook):
    def __init__(self, password):
        raise RuntimeError(f"no login with {password}")


def net(token):
    raise RuntimeError(f"no model for {token}")
"""
SECRET = "hush1234"


@pytest.fixture(autouse=True)
def notes(project: Project) -> None:
    (project.path / "notes.py").write_text(NOTES)


def get_problem(source: Any, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(source, overrides)
    assert SECRET not in "\n".join([str(caught.value), *caught.value.problems])
    return caught.value.problems[0]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"api_key": SECRET}, "hooks.0.api_key: should be a valid integer, got '***'."),
        ({"link": [SECRET]}, "hooks.0.link: should be a valid string, got '***'."),
        ({"link": {"a": SECRET}}, "hooks.0.link: should be a valid string, got '***'."),
        ({"short": SECRET}, "got '***'."),
        ({"mode": f"https://u:{SECRET}@h/"}, "hooks.0.mode: should be a valid integer, got 'https://u:***@h/'."),
        ({"mode": {"password": SECRET}}, "hooks.0.mode: should be a valid integer, got {'password': '***'}."),
        ({"tag": f"bad https://u:{SECRET}@h/"}, "hooks.0.tag: bad tag 'bad https://u:***@h/'."),
        ({"mode": 5, "link": SECRET}, "hooks.0: no mode for ***."),
        ({"type": "notes:Login", "password": SECRET}, "cannot be built: RuntimeError: no login with ***"),
        ({"type": 5, "api_key": SECRET}, "hooks.0.type: should be a name, got 5."),
    ],
)
def test_settings_of_a_hook_are_hidden(settings: dict[str, Any], problem: str) -> None:
    assert problem in get_problem({"hooks": [{"type": "notes:Note", **settings}]})


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        (f"hooks.note.link=[{SECRET}]", "command line: hooks.note.link=***: hooks.0.link: should be a valid string, "),
        (f"hooks.note={{link: [{SECRET}]}}", "command line: hooks.note=***: hooks.0.link: should be a valid string, "),
        (f"hooks.note.api_key={SECRET}", "command line: hooks.note.api_key=***: hooks.0.api_key: should be a valid "),
        (f"hooks.note.api_key=[{SECRET}", "command line: hooks.note.api_key=***: invalid YAML: "),
        (
            f"hooks.note.api_key=a #{SECRET}",
            "command line: hooks.note.api_key=***: the value contains a comment in YAML, ",
        ),
        (f"hooks.note.api_key=#{SECRET}", "command line: hooks.note.api_key=***: the value is a comment in YAML, "),
        (f"api_key={SECRET}", "command line: api_key=***: api_key: unknown key."),
        ("hooks.note.mode=x", "command line: hooks.note.mode=x: hooks.0.mode: should be a valid integer, got 'x'."),
    ],
)
def test_overrides_are_hidden(override: str, problem: str) -> None:
    assert get_problem({"hooks": [{"type": "notes:Note"}]}, override).startswith(problem)


def test_secret_that_contains_further_keys_is_hidden() -> None:
    source = {"hooks": [{"type": "notes:Note", "api_key": SECRET}]}
    problem = "command line: hooks.note.api_key.b=***: hooks.0.api_key is '***', which has no keys."
    with pytest.raises(ConfigError) as caught:
        load_config(source, ["hooks.note.api_key.b=1"])
    assert problem in caught.value.problems


def test_arguments_of_a_factory_are_hidden(project: Project) -> None:
    project.write(
        f"model: {{type: 'notes:net', token: {SECRET}}}\ndataset: {{type: 'parts:points'}}\ntraining: {{epochs: 1}}\n"
    )
    with pytest.raises(ConfigError) as caught:
        trainer_from_file(Trainer, "run.yaml")
    (problem,) = caught.value.problems
    assert problem.startswith("run.yaml:1:15: model.type: cannot be built: RuntimeError: no model for *** (")


@pytest.mark.parametrize("value", [SECRET.encode(), [SECRET], object])
def test_python_objects_are_hidden(value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        build_hook({"type": "notes:Note", "link": value, "api_key": [SECRET]})
    assert caught.value.problems == [
        "Note: link: should be a valid string, got '***'.",
        "Note: api_key: should be a valid integer, got ['***'].",
    ]
