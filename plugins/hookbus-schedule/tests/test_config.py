from __future__ import annotations

from typing import Any

import pytest

from hookbus.errors import ConfigError
from hookbus_schedule import (
    AccumulationHook,
    FreezeHook,
    ParamSchedulerHook,
    PipelineSwitchHook,
    YOLOXLrUpdaterConfig,
    YOLOXLrUpdaterHook,
    YOLOXModeSwitchConfig,
    YOLOXModeSwitchHook,
)


def test_mosaic_is_skipped_in_the_last_15_epochs_by_default() -> None:
    config = YOLOXModeSwitchConfig()

    assert config.num_last_epochs == 15
    assert config.skip_type_keys == ["Mosaic", "RandomAffine", "MixUp"]


def test_learning_rate_has_5_warm_up_epochs_and_a_ratio_by_default() -> None:
    config = YOLOXLrUpdaterConfig()

    assert (config.warmup_epochs, config.num_last_epochs, config.min_lr_ratio, config.by_epoch) == (5, 15, 0.05, False)


@pytest.mark.parametrize("value", [0, False, None])
@pytest.mark.parametrize("key", ["warmup_epochs", "warmup_iters"])
def test_warm_up_can_be_disabled(key: str, value: Any) -> None:
    assert getattr(YOLOXLrUpdaterHook({key: value}).config, key) == 0


@pytest.mark.parametrize("hook", [YOLOXLrUpdaterHook, YOLOXModeSwitchHook])
@pytest.mark.parametrize("value", [0, False, None])
@pytest.mark.parametrize("key", ["num_last_epochs", "num_last_iters"])
def test_final_phase_can_be_disabled(hook: Any, key: str, value: Any) -> None:
    assert getattr(hook({key: value}).config, key) == 0


@pytest.mark.parametrize(
    ("hook", "settings", "problem"),
    [
        (
            YOLOXLrUpdaterHook,
            {"num_last_epochs": 1, "num_last_iters": 1},
            "num_last_iters: cannot be combined",
        ),
        (
            YOLOXLrUpdaterHook,
            {"warmup_epochs": 1, "warmup_iters": 1},
            "warmup_iters: cannot be combined with warmup_epochs",
        ),
        (YOLOXLrUpdaterHook, {"min_lr": 0.1, "min_lr_ratio": 0.1}, "min_lr: cannot be combined with min_lr_ratio"),
        (YOLOXLrUpdaterHook, {"by_epoch": True, "warmup_iters": 5}, "by_epoch: requires lengths in epochs"),
        (YOLOXLrUpdaterHook, {"num_last_epochs": -1}, "num_last_epochs"),
        (YOLOXModeSwitchHook, {"skip_type_keys": []}, "skip_type_keys"),
        (PipelineSwitchHook, {"switch_pipeline": abs}, "requires either switch_epoch or switch_iter, got neither"),
        (
            PipelineSwitchHook,
            {"switch_epoch": 1, "switch_iter": 1, "switch_pipeline": abs},
            "requires either switch_epoch or switch_iter, got both",
        ),
        (PipelineSwitchHook, {"switch_epoch": 1}, "switch_pipeline: required, but missing"),
        (
            PipelineSwitchHook,
            {"switch_epoch": 1, "switch_pipeline": "math:nothing"},
            "'math:nothing' cannot be imported",
        ),
        (FreezeHook, {}, "modules: required, but missing"),
        (
            FreezeHook,
            {"modules": ["a"], "until_epoch": 1, "until_iter": 1},
            "until_iter: cannot be combined with until_epoch",
        ),
        (AccumulationHook, {}, "schedule: required, but missing"),
        (AccumulationHook, {"schedule": {}}, "schedule: must not be empty"),
        (AccumulationHook, {"schedule": {0: 2}}, "keys and values must be at least 1"),
        (AccumulationHook, {"schedule": {1: 0}}, "keys and values must be at least 1"),
        (ParamSchedulerHook, {"schedulers": {"T_max": 3}}, "requires either type or scheduler, got neither"),
        (
            ParamSchedulerHook,
            {"schedulers": {"scheduler": object(), "T_max": 3}},
            "an object cannot be combined with arguments",
        ),
        (ParamSchedulerHook, {"interval": "batch"}, "interval"),
    ],
)
def test_invalid_settings_are_errors(hook: Any, settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        hook(settings)

    assert problem in str(caught.value)


def test_schedule_is_sorted_by_its_integer_keys() -> None:
    assert AccumulationHook({"schedule": {"5": 4, "1": 1}}).config.schedule == {1: 1, 5: 4}
    assert list(AccumulationHook(schedule={5: 4, 1: 1}).config.schedule) == [1, 5]


def test_single_scheduler_requires_no_list() -> None:
    scheduler = object()

    assert ParamSchedulerHook(schedulers=scheduler).config.schedulers[0].scheduler is scheduler
    assert ParamSchedulerHook(schedulers={"type": "StepLR", "step_size": 2}).config.schedulers[0].model_extra == {
        "step_size": 2
    }
