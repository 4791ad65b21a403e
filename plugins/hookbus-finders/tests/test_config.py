"""Settings: the defaults of comparable trainers, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from hookbus.errors import ConfigError
from hookbus_finders import BatchSizeFinderHook, LRFinderHook


def test_defaults() -> None:
    config = LRFinderHook().config
    assert (config.min_lr, config.max_lr, config.num_training_steps, config.mode) == (1e-8, 1.0, 100, "exponential")
    assert (config.early_stop_threshold, config.smoothing, config.apply) == (4.0, 0.98, False)
    sizes = BatchSizeFinderHook().config
    assert (sizes.mode, sizes.steps_per_trial, sizes.init_val, sizes.max_trials) == ("power", 3, 2, 25)
    assert (sizes.margin, sizes.max_val, sizes.apply) == (0.05, 8192, False)


@pytest.mark.parametrize(
    ("hook", "settings", "message"),
    [
        (LRFinderHook, {"min_lr": 1.0, "max_lr": 1.0}, r"expected a number > min_lr \(1.0\), got 1.0"),
        (LRFinderHook, {"min_lr": 0.0}, "min_lr"),
        (LRFinderHook, {"early_stop_threshold": 1.0}, "early_stop_threshold"),
        (LRFinderHook, {"smoothing": 1.0}, "smoothing"),
        (LRFinderHook, {"num_training_steps": 3}, "num_training_steps"),
        (LRFinderHook, {"frequency": 2}, "the range test is executed once"),
        (BatchSizeFinderHook, {"init_val": 9, "max_val": 8}, r"expected at most max_val \(8\), got 9"),
        (BatchSizeFinderHook, {"margin": 1.0}, "margin"),
        (BatchSizeFinderHook, {"mode": "linear"}, "mode"),
        (BatchSizeFinderHook, {"frequency": 2}, "the search is executed once"),
    ],
)
def test_invalid_settings_are_refused(hook: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        hook(**settings)
