"""Validation of the configuration of `EarlyStoppingHook`."""

from typing import Any

import pytest

from hookbus import HookBus
from hookbus.errors import ConfigError
from hookbus_early_stopping import EarlyStoppingConfig, EarlyStoppingHook


def test_config_has_the_documented_defaults() -> None:
    assert EarlyStoppingConfig().model_dump(exclude=set(EarlyStoppingConfig.__base__.model_fields)) == {  # type: ignore[union-attr]
        "monitor": "val_loss",
        "patience": 10,
        "min_delta": 0.0,
        "min_delta_mode": "abs",
        "cumulative_delta": True,
        "mode": "auto",
        "baseline": None,
        "restore_best_weights": True,
        "check_finite": True,
        "stopping_threshold": None,
        "divergence_threshold": None,
        "start_from_epoch": 0,
        "min_epochs": 0,
        "min_steps": 0,
        "strict": True,
    }


@pytest.mark.parametrize(
    ("settings", "direction"),
    [
        ({}, "min"),
        ({"monitor": "val/accuracy"}, "max"),
        ({"monitor": "bbox_mAP"}, "max"),
        ({"monitor": "0_hmean-iou:recall", "mode": "max"}, "max"),
        ({"monitor": "accuracy", "mode": "min"}, "min"),
    ],
)
def test_direction_is_the_mode_or_inferred_from_the_name_of_the_metric(
    settings: dict[str, Any], direction: str
) -> None:
    assert EarlyStoppingConfig(**settings).direction == direction


@pytest.mark.parametrize("monitor", ["inaccuracy", "stop_rate", "accuracy_loss", "0_hmean-iou:recall"])
def test_config_rejects_mode_auto_if_the_name_implies_no_direction(monitor: str) -> None:
    with pytest.raises(ConfigError, match=f"mode: .*'{monitor}' .*Set `mode` to min or max"):
        EarlyStoppingHook(monitor=monitor)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"patience": -1}, "patience: .*-1"),
        ({"min_delta": -0.5}, "min_delta: .*-0.5"),
        ({"min_delta": float("nan")}, "min_delta: .*nan"),
        ({"min_epochs": -2}, "min_epochs: .*-2"),
        ({"min_steps": -1}, "min_steps: .*-1"),
        ({"start_from_epoch": -1}, "start_from_epoch: .*-1"),
        ({"min_delta": 0.1, "min_delta_mode": "relative"}, "min_delta_mode: .*'abs' or 'rel'.*'relative'"),
        ({"restore_best_weights": "file", "start_from_epoch": 2}, "file requires `start_from_epoch: 0`.* got 2. Set"),
        ({"baseline": float("inf")}, "baseline: .*inf"),
        ({"mode": "best"}, "mode: .*'best'"),
        ({"restore_best_weights": "disk"}, "restore_best_weights"),
        (
            {"frequency": 2},
            "frequency: not supported, got 2: the metric is evaluated at every validation or training epoch. Set",
        ),
        ({"patiense": 3}, "patiense: unknown key. Did you mean 'patience'"),
    ],
)
def test_config_names_the_invalid_setting(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EarlyStoppingHook(settings)


@pytest.mark.parametrize(
    ("mode", "good", "bad", "valid"),
    [("min", 1.0, 2.0, True), ("min", 2.0, 2.0, False), ("max", 2.0, 1.0, True), ("max", 1.0, 2.0, False)],
)
def test_config_rejects_thresholds_without_scores_between_them(mode: str, good: float, bad: float, valid: bool) -> None:
    settings = {"mode": mode, "stopping_threshold": good, "divergence_threshold": bad}
    if valid:
        EarlyStoppingHook(settings)
        return
    with pytest.raises(ConfigError, match="every score would end the run"):
        EarlyStoppingHook(settings)


@pytest.mark.parametrize(
    ("setting", "source"), [(True, "memory"), ("memory", "memory"), ("file", "file"), (False, None)]
)
def test_restore_best_weights_selects_the_source_of_the_weights(setting: bool | str, source: str | None) -> None:
    assert EarlyStoppingConfig(restore_best_weights=setting).best_weights_source == source  # type: ignore[arg-type]


def test_hook_is_registered_as_early_stopping() -> None:
    hook = EarlyStoppingHook()
    assert HookBus([hook]).hooks == {"early_stopping": hook}
    assert hook.priority == 90
