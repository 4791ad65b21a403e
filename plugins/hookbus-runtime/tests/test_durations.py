from __future__ import annotations

from typing import Any

import pytest

from hookbus_runtime.config import parse_duration


@pytest.mark.parametrize(
    ("duration", "seconds"),
    [
        ("4h", 14400),
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


@pytest.mark.parametrize("duration", ["", "4", "h", "4x", "1h2h", "0s", "-1h", 0, -5, float("nan"), float("inf"), True])
def test_invalid_duration_is_an_error(duration: Any) -> None:
    with pytest.raises(ValueError, match="must be a positive duration, got"):
        parse_duration(duration)
