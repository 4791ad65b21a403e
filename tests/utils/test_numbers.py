"""Tests of the validation of integers."""

from __future__ import annotations

from typing import Any

import pytest

from hookbus._utils.arguments import check_count
from hookbus.errors import ConfigError


@pytest.mark.parametrize(("value", "least"), [(1, 1), (0, 0), (7, 1), (10**30, 1)])
def test_sufficiently_large_integer_is_valid(value: int, least: int) -> None:
    assert check_count(value, "epochs", minimum=least) is None  # type: ignore[func-returns-value]


@pytest.mark.parametrize("value", [0, -1, True, 1.0, "1", None])
def test_invalid_value_raises_with_its_name(value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        check_count(value, "epochs")
    assert caught.value.problems == [f"epochs: expected an integer >= 1, got {value!r}."]
