from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

from hookbus.errors import ConfigError
from hookbus_schedule import SchedulerConfig
from hookbus_schedule.scheduler_entries import MomentumSchedule, build_scheduler_entry, check_scheduler_config


@pytest.fixture
def optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0, momentum=0.5)


def test_type_is_built_with_its_arguments(optimizer: torch.optim.Optimizer) -> None:
    built = build_scheduler_entry(SchedulerConfig(type="StepLR", step_size=3, gamma=0.5), "epoch", optimizer)

    assert isinstance(built.scheduler, StepLR)
    assert (built.scheduler.step_size, built.interval, built.monitor) == (3, "epoch", None)


def test_import_string_is_resolved(optimizer: torch.optim.Optimizer) -> None:
    config = SchedulerConfig(type="torch.optim.lr_scheduler:StepLR", step_size=3, interval="step")

    assert build_scheduler_entry(config, "epoch", optimizer).interval == "step"


def test_momentum_is_scheduled_with_a_momentum_schedule(optimizer: torch.optim.Optimizer) -> None:
    config = SchedulerConfig(type="StepLR", step_size=3, parameter="momentum")

    assert isinstance(build_scheduler_entry(config, "step", optimizer).scheduler, MomentumSchedule)


@pytest.mark.parametrize("monitor", [None, "val/accuracy"])
def test_plateau_scheduler_monitors_a_metric(optimizer: torch.optim.Optimizer, monitor: str | None) -> None:
    for config in ({"type": "ReduceLROnPlateau"}, {"scheduler": ReduceLROnPlateau(optimizer)}):
        built = build_scheduler_entry(SchedulerConfig(**config, monitor=monitor), "step", optimizer)
        assert built.monitor == (monitor or "val/loss")


def test_custom_scheduler_is_imported_from_the_current_directory(
    optimizer: torch.optim.Optimizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A console script has no entry for the current directory in sys.path.
    (tmp_path / "schedulers_of_this_test.py").write_text(
        "from torch.optim.lr_scheduler import StepLR\n\n\nclass CustomLR(StepLR):\n    pass\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    built = build_scheduler_entry(
        SchedulerConfig(type="schedulers_of_this_test:CustomLR", step_size=2), "step", optimizer
    )
    assert (type(built.scheduler).__name__, built.scheduler.step_size) == ("CustomLR", 2)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (
            {"type": "StepLr", "step_size": 1},
            "'StepLr' is not in torch.optim.lr_scheduler. Did you mean 'StepLR'",
        ),
        ({"type": "StepLR"}, "StepLR cannot be built: .*step_size"),
        ({"type": "no.such:Thing"}, "'no.such:Thing' cannot be imported"),
    ],
)
def test_scheduler_that_cannot_be_built_is_an_error(
    optimizer: torch.optim.Optimizer, settings: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        build_scheduler_entry(SchedulerConfig(**settings), "step", optimizer)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"type": "StepLR", "stepsize": 3}, "schedulers: StepLR: .*step_size.* Did you mean 'step_size'"),
        ({"type": "StepLR"}, "schedulers: StepLR: missing a required argument: 'step_size'."),
        (
            {"type": "StepLr", "step_size": 3},
            "'StepLr' is not in torch.optim.lr_scheduler. Did you mean 'StepLR'",
        ),
    ],
)
def test_arguments_are_checked_before_the_scheduler_is_built(settings: dict[str, Any], problem: str) -> None:
    check_scheduler_config(SchedulerConfig(type="StepLR", step_size=3))
    with pytest.raises(ConfigError, match=problem):
        check_scheduler_config(SchedulerConfig(**settings))
