"""A setting of an installed hook that has no effect because of another one is refused, whatever else is written."""

from __future__ import annotations

from typing import Any

import pytest

from hookbus import build_hook
from hookbus.errors import ConfigError


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"type": "checkpoint", "save_best": False, "rule": "less"}, "rule: no effect without `save_best`, got 'less'"),
        (
            {"type": "checkpoint", "save_top_k": 0, "best_metric": "f1"},
            "best_metric: no effect with `save_top_k: 0`, got 'f1'",
        ),
        (
            {"type": "checkpoint", "save_best": "loss", "best_metric": "f1"},
            "best_metric: no effect with save_best 'lo",
        ),
        (
            {"type": "checkpoint", "save_best": False, "best_metric": "f1"},
            "best_metric: no effect with save_best Fal",
        ),
        (
            {"type": "checkpoint", "max_keep_ckpts": None, "keep_every": 2},
            "keep_every: no effect without `max_keep_ck",
        ),
        (
            {"type": "checkpoint", "by_epoch": False, "every": "1h", "frequency": 2},
            "frequency: cannot be combined with `every`, got 2",
        ),
        ({"type": "eval", "efficient_test": True}, "efficient_test: no effect without `metrics`, got True"),
        ({"type": "eval", "save_best": False, "metric": "f1"}, "metric: no effect without `save_best`, got 'f1'"),
        (
            {"type": "early_stopping", "min_delta_mode": "rel"},
            "min_delta_mode: no effect without `min_delta`, got",
        ),
        ({"type": "early_stopping", "cumulative_delta": False}, "cumulative_delta: no effect without `min_delta`, got"),
        ({"type": "jsonl", "logging_interval": "epoch", "interval": 9}, "interval: no effect with `logging_interval"),
        ({"type": "logger", "logging_interval": "epoch", "by_epoch": False}, "by_epoch: no effect with `logging_int"),
        ({"type": "tensorboard", "logging_interval": "epoch", "frequency": 2}, "frequency: no effect with `logging_i"),
        ({"type": "check_invalid_loss", "max_skips": 3}, "max_skips: no effect with policy raise, got 3"),
        ({"type": "startup_check", "labels": False, "label_batches": 3}, "label_batches: no effect without `labels`"),
        ({"type": "out_of_memory", "reduction": "sum"}, "reduction: no effect without `retry`, got 'sum'"),
        ({"type": "time_tracking", "log_path": "a.log"}, "log_path: no effect without `log_to_file`, got 'a.log'"),
        (
            {"type": "memory_profiler", "log_gpu": False, "log_cpu": False, "warn_threshold": 1.0},
            "warn_threshold: no effect without `log_gpu` or `log_cpu`, got 1.0",
        ),
        (
            {
                "type": "system_monitor",
                **dict.fromkeys(("track_cpu", "track_memory", "track_gpu", "track_gpu_memory"), False),
                **dict.fromkeys(("track_disk", "track_network"), False),
            },
            "track_cpu: nothing is sampled",
        ),
        ({"type": "visualization", "save": False, "out_dir": "a"}, "out_dir: no effect without `save`, got 'a'"),
        ({"type": "visualization", "cam_layer": "0"}, "cam_layer: no effect with content predictions, got '0'"),
        ({"type": "visualization", "content": ["cam"], "layers": ["0"]}, "layers: no effect with content cam, got"),
        (
            {"type": "param_scheduler", "schedulers": [{"type": "StepLR", "interval": "step", "monitor": "val/loss"}]},
            "interval: no effect with `monitor`, got 'step'",
        ),
    ],
)
def test_setting_without_effect_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        build_hook(settings)
    assert message in str(error.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"type": "checkpoint", "save_best": False, "best_metric": "accuracy", "rule": None, "keep_every": None},
        {"type": "eval", "save_best": False, "metric": "accuracy", "efficient_test": False},
        {"type": "jsonl", "logging_interval": "epoch", "interval": 50, "by_epoch": True, "ignore_last": True},
        {"type": "early_stopping", "min_delta": 0.0, "min_delta_mode": "abs", "cumulative_delta": True},
        {"type": "check_invalid_loss", "policy": "stop", "max_skips": 10},
        {"type": "startup_check", "labels": False, "label_batches": 10, "num_classes": None},
        {"type": "out_of_memory", "retry": False, "reduction": "mean"},
        {"type": "time_tracking", "log_to_file": False, "log_path": "time_tracking.log"},
        {"type": "visualization", "save": False, "out_dir": None, "target": "predicted", "max_features": 16},
    ],
)
def test_default_that_is_written_out_is_accepted(settings: dict[str, Any]) -> None:
    build_hook(settings)
