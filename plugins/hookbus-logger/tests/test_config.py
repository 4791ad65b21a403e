"""Tests of the settings: documented defaults and invalid values."""

from pathlib import Path
from typing import Any

import pytest

from hookbus import Hook
from hookbus.errors import ConfigError
from hookbus_logger import JsonlHook, LoggerHook, ProgressHook


def test_logger_has_the_documented_defaults() -> None:
    config = LoggerHook().config

    assert (config.interval, config.by_epoch, config.log_metric_by_epoch, config.ignore_last) == (50, True, True, True)


def test_jsonl_has_the_same_defaults_and_a_path() -> None:
    config = JsonlHook({"path": "log.jsonl"}).config

    assert (config.interval, config.by_epoch, config.ignore_last) == (50, True, True)
    assert config.path == Path("log.jsonl")
    assert JsonlHook(path=Path("log.jsonl")).config == config


@pytest.mark.parametrize(
    ("cls", "settings", "message"),
    [
        (LoggerHook, {"interval": 0}, "interval"),
        (LoggerHook, {"interval": "50"}, "interval"),
        (LoggerHook, {"intervall": 5}, "intervall: unknown key. Did you mean 'interval'"),
        (JsonlHook, {"interval": -1}, "interval"),
        (ProgressHook, {"refresh_per_second": 0}, "refresh_per_second"),
        (ProgressHook, {"line_every": 0}, "line_every"),
    ],
)
def test_invalid_setting_is_reported_by_name(cls: type[Hook], settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        cls(settings)
