"""Settings: defaults of the documents, and what is refused."""

from pathlib import Path
from typing import Any

import pytest

from hookbus import Hook
from hookbus.errors import ConfigError
from hookbus_logger import JsonlHook, LoggerHook, ProgressHook


def test_the_defaults_of_the_logger_are_those_of_the_documents() -> None:
    config = LoggerHook().config

    assert (config.interval, config.by_epoch, config.log_metric_by_epoch, config.ignore_last) == (50, True, True, True)


def test_the_file_has_the_same_rules_and_a_place_of_its_own() -> None:
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
def test_what_cannot_be_is_refused_by_its_name(cls: type[Hook], settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        cls(settings)
