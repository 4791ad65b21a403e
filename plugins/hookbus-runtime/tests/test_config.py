from __future__ import annotations

from typing import Any

import pytest

from hookbus.errors import ConfigError
from hookbus_runtime import (
    EmptyCacheConfig,
    EmptyCacheHook,
    GarbageCollectionHook,
    MeanTeacherConfig,
    MeanTeacherHook,
    OutOfMemoryConfig,
    OutOfMemoryHook,
    TimeLimitHook,
)


def test_cache_is_released_after_epochs_by_default() -> None:
    config = EmptyCacheConfig()

    assert (config.before_epoch, config.after_epoch, config.after_iter) == (False, True, False)


def test_teacher_is_updated_at_each_step_by_default() -> None:
    config = MeanTeacherConfig()

    assert (config.momentum, config.interval, config.skip_buffer) == (0.001, 1, True)


def test_skip_buffers_is_an_alias_of_skip_buffer() -> None:
    settings = {"skip_buffers": False}

    assert MeanTeacherHook(settings).config.skip_buffer is False
    assert settings == {"skip_buffers": False}
    with pytest.raises(ConfigError, match="alias of skip_buffer, got both"):
        MeanTeacherHook(skip_buffers=False, skip_buffer=False)


def test_retry_is_disabled_by_default() -> None:
    assert (OutOfMemoryConfig().retry, OutOfMemoryConfig().reduction) == (False, "mean")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"after_epoch": False}, "after_epoch: all points are disabled, so the hook has no effect. Set one to true."),
        ({"frequency": 7}, "frequency: no effect without after_iter, got 7, because it counts iterations. Set "),
    ],
)
def test_setting_without_a_point_to_release_the_cache_is_an_error(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        EmptyCacheHook(settings)
    assert message in str(error.value)
    EmptyCacheHook(frequency=7, after_iter=True)
    EmptyCacheHook(frequency=1)


@pytest.mark.parametrize(
    ("hook", "settings"),
    [
        (EmptyCacheHook, {"after_iter": 1}),
        (GarbageCollectionHook, {"interval": 0}),
        (GarbageCollectionHook, {"generation": 3}),
        (MeanTeacherHook, {"momentum": 0.0}),
        (MeanTeacherHook, {"momentum": 1.5}),
        (MeanTeacherHook, {"interval": 0}),
        (OutOfMemoryHook, {"reduction": "max"}),
        (TimeLimitHook, {"max_time": "soon"}),
        (TimeLimitHook, {"max_time": 0}),
    ],
)
def test_invalid_settings_are_errors(hook: Any, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{hook.__name__}: {next(iter(settings))}"):
        hook(settings)
