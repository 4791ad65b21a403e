"""Settings of the predictions hook."""

from __future__ import annotations

import pytest

import hookbus_predictions.config
from hookbus.errors import ConfigError
from hookbus_predictions import PredictionsHook


def test_defaults() -> None:
    settings = PredictionsHook().config
    assert (settings.file, settings.interval, settings.merge, settings.overwrite) == (
        *("predictions.pt", "epoch", True, False),
    )


@pytest.mark.parametrize("file", ["predictions", "predictions.txt", ".csv", ""])
def test_format_is_the_suffix(file: str) -> None:
    with pytest.raises(
        ConfigError, match=r"file: should be a file with one of the suffixes \.pt, \.npz, \.csv, \.jsonl"
    ):
        PredictionsHook(file=file)


def test_parquet_requires_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hookbus_predictions.config, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"requires pyarrow, which is not installed.*hookbus-predictions\[parquet\]"):
        PredictionsHook(file="predictions.parquet")


def test_unknown_interval_is_an_error() -> None:
    with pytest.raises(ConfigError, match="interval"):
        PredictionsHook(interval="step")
