"""Which settings hold."""

from typing import Any

import pytest

from hookbus import HookBus
from hookbus.errors import ConfigError
from hookbus_early_stopping import EarlyStoppingConfig, EarlyStoppingHook


def test_the_defaults() -> None:
    assert EarlyStoppingConfig().model_dump(exclude=set(EarlyStoppingConfig.__base__.model_fields)) == {  # type: ignore[union-attr]
        "monitor": "val_loss",
        "patience": 10,
        "min_delta": 0.0,
        "mode": "auto",
        "baseline": None,
        "restore_best_weights": True,
        "check_finite": True,
        "stopping_threshold": None,
        "divergence_threshold": None,
        "min_epochs": 0,
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
def test_the_direction_is_what_was_said_or_what_the_name_says(settings: dict[str, Any], direction: str) -> None:
    assert EarlyStoppingConfig(**settings).direction == direction


@pytest.mark.parametrize("monitor", ["inaccuracy", "stop_rate", "accuracy_loss", "0_hmean-iou:recall"])
def test_a_name_that_tells_no_direction_is_refused(monitor: str) -> None:
    with pytest.raises(ConfigError, match=f"mode: '{monitor}' does not tell .* say min or max"):
        EarlyStoppingHook(monitor=monitor)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"patience": -1}, "patience: .*-1"),
        ({"min_delta": -0.5}, "min_delta: .*-0.5"),
        ({"min_delta": float("nan")}, "min_delta: .*nan"),
        ({"min_epochs": -2}, "min_epochs: .*-2"),
        ({"baseline": float("inf")}, "baseline: .*inf"),
        ({"mode": "best"}, "mode: .*'best'"),
        ({"restore_best_weights": "disk"}, "restore_best_weights"),
        ({"frequency": 2}, "frequency: it judges every validation: say patience"),
        ({"patiense": 3}, "patiense: unknown key. Did you mean 'patience'"),
    ],
)
def test_what_cannot_be_is_refused_by_its_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EarlyStoppingHook(settings)


@pytest.mark.parametrize(
    ("mode", "good", "hopeless", "holds"),
    [("min", 1.0, 2.0, True), ("min", 2.0, 2.0, False), ("max", 2.0, 1.0, True), ("max", 1.0, 2.0, False)],
)
def test_thresholds_that_leave_no_score_between_them_are_refused(
    mode: str, good: float, hopeless: float, holds: bool
) -> None:
    settings = {"mode": mode, "stopping_threshold": good, "divergence_threshold": hopeless}
    if holds:
        EarlyStoppingHook(settings)
        return
    with pytest.raises(ConfigError, match="every score would end the run"):
        EarlyStoppingHook(settings)


@pytest.mark.parametrize(("given", "where"), [(True, "memory"), ("memory", "memory"), ("file", "file"), (False, None)])
def test_best_weights_come_from_memory_or_file_or_not_at_all(given: bool | str, where: str | None) -> None:
    assert EarlyStoppingConfig(restore_best_weights=given).best_weights == where  # type: ignore[arg-type]


def test_it_is_found_under_its_short_name() -> None:
    hook = EarlyStoppingHook()
    assert HookBus([hook]).hooks == {"early_stopping": hook}
    assert hook.priority == 90
