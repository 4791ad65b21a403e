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


def test_the_cache_is_emptied_after_epochs() -> None:
    config = EmptyCacheConfig()

    assert (config.before_epoch, config.after_epoch, config.after_iter) == (False, True, False)


def test_the_teacher_takes_a_thousandth_at_each_step() -> None:
    config = MeanTeacherConfig()

    assert (config.momentum, config.interval, config.skip_buffer) == (0.001, 1, True)


def test_buffers_have_two_spellings_of_which_one_is_used() -> None:
    given = {"skip_buffers": False}

    assert MeanTeacherHook(given).config.skip_buffer is False
    assert given == {"skip_buffers": False}
    with pytest.raises(ConfigError, match="another spelling of skip_buffer: give one of them"):
        MeanTeacherHook(skip_buffers=False, skip_buffer=False)


def test_memory_is_only_reported_unless_a_retry_is_wanted() -> None:
    assert (OutOfMemoryConfig().retry, OutOfMemoryConfig().reduction) == (False, "mean")


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
def test_what_does_not_hold_is_refused(hook: Any, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{hook.__name__}: {next(iter(settings))}"):
        hook(settings)
