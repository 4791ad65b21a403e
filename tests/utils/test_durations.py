"""Tests of durations in settings."""

from __future__ import annotations

import math
from typing import Any

import pytest

from hookbus import Duration, HookConfig, parse_duration


@pytest.mark.parametrize(
    ("duration", "seconds"),
    [
        ("4h", 14400),
        ("30min", 1800),
        ("90", 90),
        ("1h30m", 5400),
        ("2d 12h", 216000),
        ("90 s", 90),
        ("0.5h", 1800),
        ("1H", 3600),
        ("04:30:00", 16200),
        ("1-04:30:15", 102615),
        (90, 90),
        (0.25, 0.25),
    ],
)
def test_duration_is_parsed(duration: Any, seconds: float) -> None:
    assert parse_duration(duration) == seconds


@pytest.mark.parametrize(
    "duration", ["", "h", "1h30", "1m2min", "4x", "1h2h", "0s", "-1h", 0, -5, math.nan, math.inf, True, 10**400]
)
def test_invalid_duration_is_an_error(duration: Any) -> None:
    with pytest.raises(ValueError, match="must be a positive duration, got"):
        parse_duration(duration)


def test_setting_keeps_the_duration_as_written() -> None:
    class Config(HookConfig):
        limit: Duration = "1h"

    assert [Config(limit=limit).limit for limit in ("30min", 90, 0.5)] == ["30min", 90, 0.5]
    with pytest.raises(ValueError, match="limit\n.*must be a positive duration, got 'soon'"):
        Config(limit="soon")
