"""Tests of the conversion of pydantic errors to messages."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from hookbus._utils.validation_errors import ALL_SETTINGS, format_validation_error


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
