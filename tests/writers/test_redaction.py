"""Tests of the redaction and conversion of configurations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import BaseModel

from hookbus._utils.redaction import redact, redact_config
from hookbus._utils.secrets import is_secret


@pytest.mark.parametrize(
    "key",
    [
        *("token", "hf_token", "password", "DB_PASSWORD", "db_password_file", "secret", "clientSecret", "api_key"),
        *("apiKey", "APIKey", "apikey", "wandb-api-key", "aws_secret_access_key", "private_key", "credentials"),
    ],
)
def test_key_of_a_secret_is_recognized(key: str) -> None:
    assert is_secret(key)


@pytest.mark.parametrize(
    "key", ["tokenizer", "num_tokens", "max_tokens", "token_dropout", "key", "keys", "monkey", "author", "lr", ""]
)
def test_similar_key_is_not_a_secret(key: str) -> None:
    assert not is_secret(key)


class Hub(BaseModel):
    url: str = "a/b"
    hf_token: str = "abc"


def test_nested_models_become_dicts_and_other_values_are_unchanged() -> None:
    hub = {"url": "a/b", "hf_token": "***"}
    settings = {"lr": 0.1, 3: {"hub": Hub()}, "hubs": (Hub(), "c")}

    assert redact_config(Hub()) == hub
    assert redact_config(settings) == {"lr": 0.1, "3": {"hub": hub}, "hubs": [hub, "c"]}
    assert settings["hubs"] == (Hub(), "c")


def test_secrets_inside_a_model_are_redacted() -> None:
    assert redact_config({"hubs": [Hub()]}) == {"hubs": [{"url": "a/b", "hf_token": "***"}]}


def test_nested_secrets_are_redacted_and_other_values_are_unchanged() -> None:
    config = {
        "lr": 0.1,
        "api_key": "x",
        "hooks": [{"type": "wandb", "token": 12}, ("a", {"password": ["y", "z"]})],
        "store": {"url": "postgresql://me:pass@host/db", "secret": None, "credentials": {"user": "me"}},
    }
    assert redact(config) == {
        "lr": 0.1,
        "api_key": "***",
        "hooks": [{"type": "wandb", "token": 12}, ["a", {"password": ["***", "***"]}]],
        "store": {"url": "postgresql://me:***@host/db", "secret": None, "credentials": {"user": "***"}},
    }
    assert config["api_key"] == "x"


@pytest.mark.parametrize(("name", "value"), [("name", "value"), ("key", "value"), ("Name", "Value")])
def test_value_of_a_named_variable_is_redacted(name: str, value: str) -> None:
    assert redact([{name: "API_KEY", value: "x"}, {name: "MODE", value: "y"}]) == [
        {name: "API_KEY", value: "***"},
        {name: "MODE", value: "y"},
    ]


def test_objects_become_builtin_types() -> None:
    config = {
        5: Path("/data"),
        "rate": np.float32(0.5),
        "count": np.int64(3),
        "all": {1},
        "file": "\udce9.txt",
        "shape": torch.Size([2, 3]),
        "device": torch.device("cpu"),
    }
    assert redact(config) == {
        "5": "/data",
        "rate": 0.5,
        "count": 3,
        "all": [1],
        "file": "\\udce9.txt",
        "shape": [2, 3],
        "device": "cpu",
    }


@pytest.mark.parametrize("text", ["http://host/path", "a:b@c", "user@host", "sqlite:///a.db"])
def test_string_without_a_password_is_unchanged(text: str) -> None:
    assert redact(text) == text
