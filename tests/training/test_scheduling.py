from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR, ReduceLROnPlateau, StepLR

from hookbus.errors import ConfigError, MetricError
from hookbus.metrics import Metrics
from hookbus.training.scheduling import SchedulerSteps


@pytest.fixture
def optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)


def lr(optimizer: torch.optim.Optimizer) -> float:
    return float(optimizer.param_groups[0]["lr"])


def run_with(complete: bool = True, **results: float) -> Any:
    found = Metrics({name.replace("_", "/", 1): value for name, value in results.items()})
    return SimpleNamespace(epoch_complete=complete, metrics=SimpleNamespace(results=found))


def test_a_scheduler_per_epoch_is_stepped_by_epochs_only(optimizer: torch.optim.Optimizer) -> None:
    steps = SchedulerSteps(ExponentialLR(optimizer, 0.5), "epoch", None)
    optimizer.step()
    steps.after_update()
    steps.after_validation(run_with(val_loss=1.0))
    assert lr(optimizer) == 1.0

    steps.after_epoch(run_with())
    assert lr(optimizer) == 0.5


def test_an_epoch_that_was_cut_does_not_count(optimizer: torch.optim.Optimizer) -> None:
    steps = SchedulerSteps(ExponentialLR(optimizer, 0.5), "epoch", None)
    steps.after_epoch(run_with(complete=False))

    assert lr(optimizer) == 1.0


def test_a_scheduler_per_step_is_stepped_by_updates_only(optimizer: torch.optim.Optimizer) -> None:
    steps = SchedulerSteps(ExponentialLR(optimizer, 0.5), "step", None)
    optimizer.step()
    steps.after_epoch(run_with())
    steps.after_validation(run_with(val_loss=1.0))
    assert lr(optimizer) == 1.0

    steps.after_update()
    steps.after_update()
    assert lr(optimizer) == 0.25


def test_a_plateau_scheduler_is_stepped_with_the_validation_loss(optimizer: torch.optim.Optimizer) -> None:
    steps = SchedulerSteps(ReduceLROnPlateau(optimizer, factor=0.1, patience=1), "epoch", None)
    assert steps.monitor == "val/loss"
    rates = []
    for loss in (1.0, 2.0, 2.0, 0.5):
        steps.after_update()
        steps.after_validation(run_with(val_loss=loss))
        steps.after_epoch(run_with())
        rates.append(lr(optimizer))

    assert rates == [1.0, 1.0, 0.1, 0.1]


def test_a_loss_that_is_nan_is_no_improvement(optimizer: torch.optim.Optimizer) -> None:
    steps = SchedulerSteps(ReduceLROnPlateau(optimizer, factor=0.1, patience=0), "epoch", None)
    steps.after_validation(run_with(val_loss=1.0))
    steps.after_validation(run_with(val_loss=float("nan")))

    assert lr(optimizer) == 0.1


@pytest.mark.parametrize("written", ["accuracy", "val_accuracy", "val/accuracy"])
def test_the_metric_may_be_another_one_in_any_spelling(optimizer: torch.optim.Optimizer, written: str) -> None:
    steps = SchedulerSteps(ReduceLROnPlateau(optimizer, mode="max", factor=0.1, patience=0), "epoch", written)
    for accuracy in (0.5, 0.4):
        steps.after_validation(run_with(val_loss=1.0, val_accuracy=accuracy))

    assert lr(optimizer) == 0.1


def test_a_metric_that_is_not_there_is_an_error_that_lists_what_there_is(optimizer: torch.optim.Optimizer) -> None:
    steps = SchedulerSteps(ReduceLROnPlateau(optimizer), "epoch", None)

    with pytest.raises(MetricError, match="There is no metric 'val/loss'. Available: val/accuracy."):
        steps.after_validation(run_with(val_accuracy=0.5))


def test_without_a_scheduler_nothing_happens(optimizer: torch.optim.Optimizer) -> None:
    steps = SchedulerSteps(None, "epoch", None)
    steps.after_update()
    steps.after_epoch(run_with())
    steps.after_validation(run_with())

    assert lr(optimizer) == 1.0


def test_another_interval_is_refused(optimizer: torch.optim.Optimizer) -> None:
    with pytest.raises(ConfigError, match="scheduler_interval: 'batch' is neither 'epoch' nor 'step'."):
        SchedulerSteps(StepLR(optimizer, 1), "batch", None)


def test_a_metric_is_refused_where_the_scheduler_takes_none(optimizer: torch.optim.Optimizer) -> None:
    with pytest.raises(ConfigError, match="scheduler_monitor: StepLR takes no metric: leave monitor out."):
        SchedulerSteps(StepLR(optimizer, 1), "epoch", "val/loss")


@pytest.mark.parametrize(("interval", "limit", "lines"), [("epoch", 2, 1), ("epoch", 3, 0), ("step", 2, 0)])
def test_one_per_epoch_in_a_run_that_ends_before_is_told(
    optimizer: torch.optim.Optimizer, interval: Any, limit: int, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    run = SimpleNamespace(
        clock=SimpleNamespace(epoch_length=3, max_iters=limit), logger=logging.getLogger("hookbus.test")
    )
    SchedulerSteps(StepLR(optimizer, 1), interval, None).say_if_it_never_comes(run)  # type: ignore[arg-type]

    wanted = "The scheduler (StepLR) is stepped after each epoch of 3 iterations, and the run ends after 2"
    assert [record.getMessage().startswith(wanted) for record in caplog.records] == [True] * lines
