from __future__ import annotations

from typing import Any

import pytest

from hookbus.errors import ConfigError
from hookbus_guards import (
    CheckInvalidLossConfig,
    CheckInvalidLossHook,
    NumClassCheckConfig,
    NumClassCheckHook,
    StartupCheckConfig,
    StartupCheckHook,
)


def test_an_invalid_loss_is_looked_for_every_50_iterations_and_raises() -> None:
    config = CheckInvalidLossConfig()

    assert (config.interval, config.policy, config.before_step, config.looks_first) == (50, "raise", False, False)


@pytest.mark.parametrize(
    ("settings", "first"),
    [({"before_step": True}, True), ({"policy": "skip", "interval": 1}, True), ({"policy": "stop"}, False)],
)
def test_leaving_out_means_to_look_first(settings: dict[str, Any], first: bool) -> None:
    assert CheckInvalidLossConfig(**settings).looks_first is first


def test_leaving_out_only_some_is_refused() -> None:
    with pytest.raises(ConfigError, match="policy skip needs interval: 1"):
        CheckInvalidLossHook(policy="skip")


@pytest.mark.parametrize(
    "settings",
    [{"interval": 0}, {"interval": -1}, {"policy": "warn"}, {"max_skips": 0, "policy": "skip", "interval": 1}],
)
def test_settings_without_a_meaning_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"CheckInvalidLossHook: {next(iter(settings))}"):
        CheckInvalidLossHook(settings)


def test_heads_that_propose_regions_are_left_alone() -> None:
    assert NumClassCheckConfig().exclude == ["rpn_head", "VGG", "FusedSemanticHead"]
    assert NumClassCheckHook(exclude=[]).config.exclude == []


def test_every_startup_check_is_on_and_has_a_switch() -> None:
    config = StartupCheckConfig()

    assert config.labels is config.loaders is config.gradients is config.optimizer is True
    assert (config.num_classes, config.ignore_index, config.label_batches) == (None, -100, 10)
    with pytest.raises(ConfigError, match="num_classes"):
        StartupCheckHook(num_classes=0)
