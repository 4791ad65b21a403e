"""Tests of secret values that are hidden wherever they occur."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, SecretStr

from hookbus import Hook, HookBus, HookConfig
from hookbus._run.known_secrets import KnownSecrets


class NoteConfig(HookConfig):
    link: SecretStr = SecretStr("")
    api_key: str = ""


class Note(Hook):
    Config = NoteConfig


class Settings(BaseModel):
    link: SecretStr = SecretStr("linkvalue")
    lr: float = 0.1


@pytest.mark.parametrize(
    "config",
    [
        {"api_key": "keyvalue"},
        {"hub": [{"tokens": ["a", "keyvalue"]}]},
        {"url": "postgres://me:keyvalue@host/db"},
        {"url": "https://host/x?token=keyvalue&n=1&api_key=other"},
        {"url": "https://host/x?token=other&n=1&api_key=keyvalue"},
        {"command": ["train", "--token", "keyvalue"]},
        {"link": SecretStr("keyvalue")},
        Settings(link=SecretStr("keyvalue")),
    ],
)
def test_secret_value_of_the_configuration_is_hidden_in_a_message(config: Any) -> None:
    message = "rejected keyvalue, not keyvalues"
    assert KnownSecrets().redact(message, config, []) == "rejected ***, not keyvalues"
    assert KnownSecrets().redact({"a": [message, 1], "keyvalue": None}, config, []) == {
        "a": ["rejected ***, not keyvalues", 1],
        "***": None,
    }


def test_secret_values_of_hooks_are_hidden_in_a_message() -> None:
    settings = NoteConfig(link="linkvalue", api_key="link+value")
    assert KnownSecrets().redact("linkvalue and (link+value)", {}, [settings]) == "*** and (***)"


def test_ordinary_and_short_values_are_unchanged() -> None:
    config = {"model": "mlp-large", "api_key": "mlp", "url": "http://host/path", "max_tokens": 100000}
    message = "mlp-large of mlp at http://host/path with 100000"
    assert KnownSecrets().redact(message, config, [NoteConfig()]) == message


def test_long_text_with_many_secrets_is_processed_in_linear_time() -> None:
    # The time of a regular expression with a group for each secret would not be linear.
    config = {"text": "token=keyvalue&x=1&" * 20000 + "token=keyvalue"}
    assert KnownSecrets().redact("keyvalue", config, []) == "***"


def test_run_redacts_by_its_configuration_and_its_hooks() -> None:
    with HookBus([Note(link="linkvalue")]).run(config={"api_key": "keyvalue"}) as run:
        assert run.redact(["linkvalue", "keyvalue", "https://me:other@host", 3]) == [
            "***",
            "***",
            "https://me:***@host",
            3,
        ]
