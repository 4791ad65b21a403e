"""Tests of the secrets that a type declares."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, Literal, NewType, TypedDict

import pytest
from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    RootModel,
    Secret,
    SecretBytes,
    SecretStr,
    SerializeAsAny,
    field_serializer,
)

from hookbus._utils.redaction import dump_model, hide_declared, redact, redact_config


class Login(BaseModel):
    user: str = "me"
    link: SecretStr = SecretStr("")


class Token(BaseModel):
    kind: Literal["token"] = "token"
    link: SecretStr


class Public(BaseModel):
    kind: Literal["public"] = "public"
    link: str


class Links(RootModel[list[SecretStr]]):
    pass


@dataclass
class Account:
    user: str
    link: SecretStr


class Options(TypedDict, total=False):
    link: SecretStr
    count: int


Link = NewType("Link", SecretStr)


@pytest.mark.parametrize(
    ("declared", "value", "hidden"),
    [
        (SecretStr, "S", "***"),
        (SecretBytes, b"S", "***"),
        (Secret[date], "2026-01-01", "***"),
        (Secret[int], 7, "***"),
        (SecretStr | None, "S", "***"),
        (SecretStr | None, None, None),
        (SecretStr, "", ""),
        (SecretStr, "${env:NAME}", "${env:NAME}"),
        (Annotated[SecretStr, Field(min_length=1)], "S", "***"),
        (Link, "S", "***"),
        (list[SecretStr], ["S", "S"], ["***", "***"]),
        (tuple[str, SecretStr], ["a", "S"], ["a", "***"]),
        (tuple[SecretStr, ...], ["S", "S"], ["***", "***"]),
        (dict[str, SecretStr], {"a": "S"}, {"a": "***"}),
        (dict[str, list[Login]], {"a": [{"link": "S"}]}, {"a": [{"link": "***"}]}),
        (Login, {"user": "me", "link": "S", "other": "x"}, {"user": "me", "link": "***", "other": "x"}),
        (Annotated[Token | Public, Field(discriminator="kind")], {"link": "S"}, {"link": "***"}),
        (Links, ["S"], ["***"]),
        (Account, {"user": "me", "link": "S"}, {"user": "me", "link": "***"}),
        (Options, {"link": "S", "count": 2}, {"link": "***", "count": 2}),
        (str, "S", "S"),
        (Any, {"link": "S"}, {"link": "S"}),
        (None, ["S"], ["S"]),
    ],
)
def test_settings_of_a_secret_type_are_hidden(declared: Any, value: Any, hidden: Any) -> None:
    assert hide_declared(value, declared) == hidden


def test_settings_are_hidden_under_each_name_of_a_field() -> None:
    class Renamed(BaseModel):
        link: SecretStr = Field(alias="Link")
        other: SecretStr = Field(validation_alias=AliasChoices("first", "second"))

    settings = {"link": "S", "Link": "S", "other": "S", "first": "S", "second": "S"}
    assert set(hide_declared(settings, Renamed).values()) == {"***"}


def test_parameters_of_a_secret_type_are_hidden() -> None:
    class Plain:
        def __init__(self, link: SecretStr, count: int = 1) -> None: ...

    assert hide_declared({"link": "S", "count": 2}, Plain) == {"link": "***", "count": 2}


def test_dump_hides_the_fields_of_secret_types() -> None:
    class Settings(BaseModel):
        link: SecretStr = SecretStr("S")
        empty: SecretStr = SecretStr("")
        born: Secret[date] = Secret(date(2026, 1, 1))
        logins: dict[str, list[Login]] = {"a": [Login(link=SecretStr("S"))]}
        links: Links = Links([SecretStr("S")])
        anything: Any = SecretStr("S")
        many: set[SecretStr] = {SecretStr("S")}
        count: int = 3

    assert dump_model(Settings()) == {
        "link": "***",
        "empty": "",
        "born": "***",
        "logins": {"a": [{"user": "me", "link": "***"}]},
        "links": ["***"],
        "anything": "***",
        "many": ["***"],
        "count": 3,
    }


def test_dump_hides_a_secret_that_a_serializer_reveals() -> None:
    class Revealing(BaseModel):
        model_config = ConfigDict(serialize_by_alias=True)
        link: SecretStr = Field(default=SecretStr("S"), serialization_alias="Link")

        @field_serializer("link", when_used="json")
        def _reveal(self, value: SecretStr) -> str:
            return value.get_secret_value()

    class Outer(BaseModel):
        inner: SerializeAsAny[BaseModel] = Revealing()

    assert dump_model(Revealing()) == {"Link": "***"}
    assert dump_model(Outer()) == {"inner": {"Link": "***"}}


def test_dump_takes_the_options_of_pydantic() -> None:
    assert dump_model(Login(link=SecretStr("S")), exclude_unset=True) == {"link": "***"}


def test_class_of_a_model_is_text() -> None:
    assert redact({"config": Public}) == {"config": str(Public)}


def test_object_inside_a_config_is_dumped_as_a_model() -> None:
    class Settings:
        def model_dump(self, mode: str) -> dict[str, str]:
            return {"mode": mode, "api_key": "abc"}

    assert redact_config({"inner": [Settings()]}) == {"inner": [{"mode": "json", "api_key": "***"}]}
