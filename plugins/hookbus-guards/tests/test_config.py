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


def test_loss_is_checked_every_50_iterations_and_raises_by_default() -> None:
    config = CheckInvalidLossConfig()

    assert (config.interval, config.policy, config.before_step, config.checks_before_step) == (
        50,
        "raise",
        False,
        False,
    )


@pytest.mark.parametrize(
    ("settings", "first"),
    [({"before_step": True}, True), ({"policy": "skip", "interval": 1}, True), ({"policy": "stop"}, False)],
)
def test_policy_skip_checks_the_loss_before_the_backward_pass(settings: dict[str, Any], first: bool) -> None:
    assert CheckInvalidLossConfig(**settings).checks_before_step is first


def test_policy_skip_with_a_longer_interval_is_an_error() -> None:
    with pytest.raises(ConfigError, match="policy skip requires interval: 1, got 50"):
        CheckInvalidLossHook(policy="skip")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"policy": "skip", "interval": 1}, "policy skip checks every loss"),
        ({"before_step": True}, "before_step checks it at two points"),
    ],
)
def test_schedule_of_a_check_before_the_backward_pass_is_an_error(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError) as error:
        CheckInvalidLossHook(settings, when="every(7)")
    assert str(error.value) == (
        f"CheckInvalidLossHook: settings: when: not supported, got every(7), because {reason}. Set `interval` instead."
    )
    assert CheckInvalidLossHook(when="every(7)").config.when is not None


def test_schedule_of_the_startup_check_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"when: not supported, got every\(7\): .* Set `label_batches`"):
        StartupCheckHook(when="every(7)")


@pytest.mark.parametrize(
    "settings",
    [{"interval": 0}, {"interval": -1}, {"policy": "warn"}, {"max_skips": 0, "policy": "skip", "interval": 1}],
)
def test_invalid_settings_are_errors(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"CheckInvalidLossHook: {next(iter(settings))}"):
        CheckInvalidLossHook(settings)


def test_region_proposal_heads_are_excluded_by_default() -> None:
    assert NumClassCheckConfig().exclude == ["rpn_head", "VGG", "FusedSemanticHead"]
    assert NumClassCheckHook(exclude=[]).config.exclude == []


def test_each_startup_check_is_enabled_by_default() -> None:
    config = StartupCheckConfig()

    assert config.labels is config.loaders is config.gradients is config.optimizer is True
    assert (config.num_classes, config.ignore_index, config.label_batches) == (None, -100, 10)
    with pytest.raises(ConfigError, match="num_classes"):
        StartupCheckHook(num_classes=0)
