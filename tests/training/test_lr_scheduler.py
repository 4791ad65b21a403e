from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR, ReduceLROnPlateau, StepLR

from hookbus._training.lr_scheduler import LRSchedulerStepper
from hookbus.errors import ConfigError, MetricError
from hookbus.metrics.results import Metrics


@pytest.fixture
def optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)


def get_lr(optimizer: torch.optim.Optimizer) -> float:
    return float(optimizer.param_groups[0]["lr"])


def make_run(complete: bool = True, **results: float) -> Any:
    metrics = Metrics({name.replace("_", "/", 1): value for name, value in results.items()})
    return SimpleNamespace(epoch_complete=complete, metrics=SimpleNamespace(results=metrics))


def test_epoch_scheduler_is_stepped_after_epochs_only(optimizer: torch.optim.Optimizer) -> None:
    steps = LRSchedulerStepper(ExponentialLR(optimizer, 0.5), "epoch", None)
    optimizer.step()
    steps.after_optimizer_step(None)
    steps.after_validation(make_run(val_loss=1.0))
    assert get_lr(optimizer) == 1.0

    steps.after_epoch(make_run())
    assert get_lr(optimizer) == 0.5


def test_truncated_epoch_does_not_step_the_scheduler(optimizer: torch.optim.Optimizer) -> None:
    steps = LRSchedulerStepper(ExponentialLR(optimizer, 0.5), "epoch", None)
    steps.after_epoch(make_run(complete=False))

    assert get_lr(optimizer) == 1.0


def test_step_scheduler_is_stepped_after_optimizer_steps_only(optimizer: torch.optim.Optimizer) -> None:
    steps = LRSchedulerStepper(ExponentialLR(optimizer, 0.5), "step", None)
    optimizer.step()
    steps.after_epoch(make_run())
    steps.after_validation(make_run(val_loss=1.0))
    assert get_lr(optimizer) == 1.0

    steps.after_optimizer_step(None)
    steps.after_optimizer_step(None)
    assert get_lr(optimizer) == 0.25


def test_plateau_scheduler_is_stepped_with_the_validation_loss(optimizer: torch.optim.Optimizer) -> None:
    steps = LRSchedulerStepper(ReduceLROnPlateau(optimizer, factor=0.1, patience=1), "epoch", None)
    assert steps.monitor == "val/loss"
    rates = []
    for loss in (1.0, 2.0, 2.0, 0.5):
        steps.after_optimizer_step(None)
        steps.after_validation(make_run(val_loss=loss))
        steps.after_epoch(make_run())
        rates.append(get_lr(optimizer))

    assert rates == [1.0, 1.0, 0.1, 0.1]


def test_nan_loss_is_no_improvement(optimizer: torch.optim.Optimizer) -> None:
    steps = LRSchedulerStepper(ReduceLROnPlateau(optimizer, factor=0.1, patience=0), "epoch", None)
    steps.after_validation(make_run(val_loss=1.0))
    steps.after_validation(make_run(val_loss=float("nan")))

    assert get_lr(optimizer) == 0.1


@pytest.mark.parametrize("name", ["accuracy", "val_accuracy", "val/accuracy"])
def test_monitor_accepts_any_spelling_of_a_metric(optimizer: torch.optim.Optimizer, name: str) -> None:
    steps = LRSchedulerStepper(ReduceLROnPlateau(optimizer, mode="max", factor=0.1, patience=0), "epoch", name)
    for accuracy in (0.5, 0.4):
        steps.after_validation(make_run(val_loss=1.0, val_accuracy=accuracy))

    assert get_lr(optimizer) == 0.1


def test_missing_metric_is_an_error_that_lists_available_metrics(optimizer: torch.optim.Optimizer) -> None:
    steps = LRSchedulerStepper(ReduceLROnPlateau(optimizer), "epoch", None)

    with pytest.raises(MetricError, match="Unknown metric 'val/loss'. Available: val/accuracy."):
        steps.after_validation(make_run(val_accuracy=0.5))


def test_learning_rate_is_unchanged_without_a_scheduler(optimizer: torch.optim.Optimizer) -> None:
    steps = LRSchedulerStepper(None, "epoch", None)
    steps.after_optimizer_step(None)
    steps.after_epoch(make_run())
    steps.after_validation(make_run())

    assert get_lr(optimizer) == 1.0


def test_unknown_interval_is_an_error(optimizer: torch.optim.Optimizer) -> None:
    with pytest.raises(ConfigError, match="scheduler_interval: expected 'epoch' or 'step', got 'batch'."):
        LRSchedulerStepper(StepLR(optimizer, 1), "batch", None)


def test_monitor_is_an_error_if_the_scheduler_takes_no_metric(optimizer: torch.optim.Optimizer) -> None:
    with pytest.raises(
        ConfigError, match="scheduler_monitor: StepLR takes no metric, got 'val/loss'. Remove `monitor`."
    ):
        LRSchedulerStepper(StepLR(optimizer, 1), "epoch", "val/loss")


@pytest.mark.parametrize(("interval", "limit", "lines"), [("epoch", 2, 1), ("epoch", 3, 0), ("step", 2, 0)])
def test_epoch_scheduler_that_is_never_stepped_logs_a_warning(
    optimizer: torch.optim.Optimizer, interval: Any, limit: int, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    run = SimpleNamespace(
        clock=SimpleNamespace(epoch_length=3, max_iters=limit), logger=logging.getLogger("hookbus.test")
    )
    LRSchedulerStepper(StepLR(optimizer, 1), interval, None).warn_if_never_stepped(run)  # type: ignore[arg-type]

    message = "scheduler (StepLR): stepped after each epoch of 3 iterations, but the run ends after 2"
    assert [record.getMessage().startswith(message) for record in caplog.records] == [True] * lines
