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


def test_the_last_15_epochs_are_without_mosaic() -> None:
    config = YOLOXModeSwitchConfig()

    assert config.num_last_epochs == 15
    assert config.skip_type_keys == ["Mosaic", "RandomAffine", "MixUp"]


def test_the_rate_rises_for_5_epochs_and_ends_at_a_twentieth() -> None:
    config = YOLOXLrUpdaterConfig()

    assert (config.warmup_epochs, config.num_last_epochs, config.min_lr_ratio, config.by_epoch) == (5, 15, 0.05, False)


@pytest.mark.parametrize("value", [0, False, None])
@pytest.mark.parametrize("key", ["warmup_epochs", "warmup_iters"])
def test_a_warm_up_that_is_switched_off_is_off(key: str, value: Any) -> None:
    assert getattr(YOLOXLrUpdaterHook({key: value}).config, key) == 0


@pytest.mark.parametrize("hook", [YOLOXLrUpdaterHook, YOLOXModeSwitchHook])
@pytest.mark.parametrize("value", [0, False, None])
@pytest.mark.parametrize("key", ["num_last_epochs", "num_last_iters"])
def test_a_last_part_that_is_switched_off_is_off(hook: Any, key: str, value: Any) -> None:
    assert getattr(hook({key: value}).config, key) == 0


@pytest.mark.parametrize(
    ("hook", "settings", "problem"),
    [
        (YOLOXLrUpdaterHook, {"num_last_epochs": 1, "num_last_iters": 1}, "num_last_iters: it says the same"),
        (
            YOLOXLrUpdaterHook,
            {"warmup_epochs": 1, "warmup_iters": 1},
            "warmup_iters: it says the same as warmup_epochs",
        ),
        (YOLOXLrUpdaterHook, {"min_lr": 0.1, "min_lr_ratio": 0.1}, "min_lr: it says the same as min_lr_ratio"),
        (YOLOXLrUpdaterHook, {"by_epoch": True, "warmup_iters": 5}, "counted in epochs, not in iterations"),
        (YOLOXLrUpdaterHook, {"num_last_epochs": -1}, "num_last_epochs"),
        (YOLOXModeSwitchHook, {"skip_type_keys": []}, "skip_type_keys"),
        (PipelineSwitchHook, {"switch_pipeline": abs}, "say when to switch, by switch_epoch or by switch_iter"),
        (PipelineSwitchHook, {"switch_epoch": 1, "switch_iter": 1, "switch_pipeline": abs}, "say when to switch"),
        (PipelineSwitchHook, {"switch_epoch": 1}, "switch_pipeline: required, but missing"),
        (
            PipelineSwitchHook,
            {"switch_epoch": 1, "switch_pipeline": "math:nothing"},
            "'math:nothing' cannot be imported",
        ),
        (FreezeHook, {}, "modules: required, but missing"),
        (FreezeHook, {"modules": ["a"], "until_epoch": 1, "until_iter": 1}, "until_iter: it says the same"),
        (AccumulationHook, {}, "schedule: required, but missing"),
        (AccumulationHook, {"schedule": {}}, "say from when on how many"),
        (AccumulationHook, {"schedule": {0: 2}}, "are at least 1"),
        (AccumulationHook, {"schedule": {1: 0}}, "are at least 1"),
        (ParamSchedulerHook, {"schedulers": {"T_max": 3}}, "either a type with its settings, or a scheduler object"),
        (ParamSchedulerHook, {"schedulers": {"scheduler": object(), "T_max": 3}}, "an object has its settings"),
        (ParamSchedulerHook, {"interval": "batch"}, "interval"),
    ],
)
def test_what_does_not_hold_is_refused(hook: Any, settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        hook(settings)

    assert problem in str(caught.value)


def test_a_schedule_may_come_from_a_file_in_any_order() -> None:
    assert AccumulationHook({"schedule": {"5": 4, "1": 1}}).config.schedule == {1: 1, 5: 4}
    assert list(AccumulationHook(schedule={5: 4, 1: 1}).config.schedule) == [1, 5]


def test_one_scheduler_needs_no_list() -> None:
    scheduler = object()

    assert ParamSchedulerHook(schedulers=scheduler).config.schedulers[0].scheduler is scheduler
    assert ParamSchedulerHook(schedulers={"type": "StepLR", "step_size": 2}).config.schedulers[0].model_extra == {
        "step_size": 2
    }
