from __future__ import annotations

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import ExponentialLR, ReduceLROnPlateau, StepLR

from hookbus._training.lr_scheduler import LRSchedulerStepper, check_scheduler_steps, load_scheduler
from hookbus.errors import ConfigError, MetricError
from hookbus.metrics.results import Metrics


@pytest.fixture
def optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)


def get_lr(optimizer: torch.optim.Optimizer) -> float:
    return float(optimizer.param_groups[0]["lr"])


def make_results(**results: float) -> Metrics:
    return Metrics({name.replace("_", "/", 1): value for name, value in results.items()})


def test_epoch_scheduler_is_stepped_after_epochs_only(optimizer: torch.optim.Optimizer) -> None:
    steps = LRSchedulerStepper(ExponentialLR(optimizer, 0.5), "epoch", None)
    optimizer.step()
    steps.after_optimizer_step(None)
    steps.after_validation(make_results(val_loss=1.0))
    assert get_lr(optimizer) == 1.0

    steps.after_epoch(True)
    assert get_lr(optimizer) == 0.5


def test_truncated_epoch_does_not_step_the_scheduler(optimizer: torch.optim.Optimizer) -> None:
    steps = LRSchedulerStepper(ExponentialLR(optimizer, 0.5), "epoch", None)
    steps.after_epoch(False)

    assert get_lr(optimizer) == 1.0


def test_step_scheduler_is_stepped_after_optimizer_steps_only(optimizer: torch.optim.Optimizer) -> None:
    steps = LRSchedulerStepper(ExponentialLR(optimizer, 0.5), "step", None)
    optimizer.step()
    steps.after_epoch(True)
    steps.after_validation(make_results(val_loss=1.0))
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
        steps.after_validation(make_results(val_loss=loss))
        steps.after_epoch(True)
        rates.append(get_lr(optimizer))

    assert rates == [1.0, 1.0, 0.1, 0.1]


def test_nan_loss_is_no_improvement(optimizer: torch.optim.Optimizer) -> None:
    steps = LRSchedulerStepper(ReduceLROnPlateau(optimizer, factor=0.1, patience=0), "epoch", None)
    steps.after_validation(make_results(val_loss=1.0))
    steps.after_validation(make_results(val_loss=float("nan")))

    assert get_lr(optimizer) == 0.1


@pytest.mark.parametrize("name", ["accuracy", "val_accuracy", "val/accuracy"])
def test_monitor_accepts_any_spelling_of_a_metric(optimizer: torch.optim.Optimizer, name: str) -> None:
    steps = LRSchedulerStepper(ReduceLROnPlateau(optimizer, mode="max", factor=0.1, patience=0), "epoch", name)
    for accuracy in (0.5, 0.4):
        steps.after_validation(make_results(val_loss=1.0, val_accuracy=accuracy))

    assert get_lr(optimizer) == 0.1


def test_missing_metric_is_an_error_that_lists_available_metrics(optimizer: torch.optim.Optimizer) -> None:
    steps = LRSchedulerStepper(ReduceLROnPlateau(optimizer), "epoch", None)

    with pytest.raises(MetricError, match="Unknown metric 'val/loss'. Available: val/accuracy."):
        steps.after_validation(make_results(val_accuracy=0.5))


def test_learning_rate_is_unchanged_without_a_scheduler(optimizer: torch.optim.Optimizer) -> None:
    steps = LRSchedulerStepper(None, "epoch", None)
    steps.after_optimizer_step(None)
    steps.after_epoch(True)
    steps.after_validation(make_results())

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
    clock: Any = SimpleNamespace(epoch_length=3, max_iters=limit)
    stepper = LRSchedulerStepper(StepLR(optimizer, 1), interval, None)
    stepper.warn_if_never_stepped(clock, logging.getLogger("hookbus.test"))

    message = "scheduler (StepLR): stepped after each epoch of 3 iterations, but the run ends after 2"
    assert [record.getMessage().startswith(message) for record in caplog.records] == [True] * lines


OneCycle = lr_scheduler.OneCycleLR
RATES = [0.1, 0.2, 0.3]


def make_optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0, momentum=0.9)


def make_sequence(optimizer: torch.optim.Optimizer, total: int) -> lr_scheduler.SequentialLR:
    parts = [lr_scheduler.ConstantLR(optimizer, total_iters=2), OneCycle(optimizer, 1.0, total_steps=total)]
    return lr_scheduler.SequentialLR(optimizer, parts, milestones=[2])


def advance(scheduler: Any, steps: int) -> Any:
    for _ in range(steps):
        scheduler.optimizer.step()
        scheduler.step()
    return scheduler


class TestCheckLength:
    def test_one_cycle_that_is_too_short_is_an_error_with_both_lengths(self) -> None:
        scheduler = advance(OneCycle(make_optimizer(), 1.0, total_steps=8), 3)
        check_scheduler_steps(scheduler, 5)
        with pytest.raises(ConfigError) as caught:
            check_scheduler_steps(scheduler, 6)
        assert str(caught.value) == (
            "step 9 of the scheduler raised ValueError: Tried to step 9 times: it was built for 8 steps, and the run "
            "needs 9. Build it for 9 steps."
        )

    def test_one_cycle_is_checked_for_any_length(self) -> None:
        with pytest.raises(ConfigError, match="step 1000001 of the scheduler.* the run needs 2000000"):
            check_scheduler_steps(OneCycle(make_optimizer(), 1.0, total_steps=1_000_000), 2_000_000)

    @pytest.mark.parametrize(
        "build",
        [
            lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: [1, *RATES][step]),
            lambda optimizer: make_sequence(optimizer, 1),
            lambda optimizer: lr_scheduler.ChainedScheduler([OneCycle(optimizer, 1.0, total_steps=3)]),
        ],
    )
    def test_scheduler_that_ends_after_three_steps_is_an_error(self, build: Callable[[Any], Any]) -> None:
        scheduler = advance(build(make_optimizer()), 1)
        check_scheduler_steps(scheduler, 2)
        with pytest.raises(ConfigError, match="^step 4 of the scheduler raised"):
            check_scheduler_steps(scheduler, 3)

    def test_check_modifies_neither_scheduler_nor_optimizer(self) -> None:
        optimizer = make_optimizer()
        optimizer.param_groups[0]["params"][0].grad = torch.ones(1)
        scheduler = advance(make_sequence(optimizer, 5), 3)
        before, rates = str(scheduler.state_dict()), optimizer.param_groups[0]["lr"]
        momentum = next(iter(optimizer.state.values()))["momentum_buffer"]
        check_scheduler_steps(scheduler, 3)
        assert str(scheduler.state_dict()) == before
        assert optimizer.param_groups[0]["lr"] == rates
        assert next(iter(optimizer.state.values()))["momentum_buffer"] is momentum

    def test_scheduler_without_an_end_is_stepped_once(self) -> None:
        scheduler = lr_scheduler.StepLR(make_optimizer(), 0)
        with pytest.raises(ConfigError, match="step 1 of the scheduler raised ZeroDivisionError"):
            check_scheduler_steps(scheduler, 10**12)
        check_scheduler_steps(lr_scheduler.CosineAnnealingLR(make_optimizer(), 3), 10**12)


class TestLoadScheduler:
    @pytest.mark.parametrize("build", [lambda o, n: OneCycle(o, 1.0, total_steps=n), make_sequence])
    def test_longer_one_cycle_keeps_its_length(self, build: Callable[[Any, int], Any]) -> None:
        old = advance(build(make_optimizer(), 6), 4)
        new = build(make_optimizer(), 12)

        messages = load_scheduler(new, old.state_dict())

        assert messages == [
            "OneCycleLR was built with total_steps=12, and the checkpoint contains 6. The scheduler determines the "
            "learning rate."
        ]
        fresh = advance(build(make_optimizer(), 12), 5)
        assert advance(new, 1).get_last_lr() == fresh.get_last_lr()

    def test_one_cycle_of_the_same_length_is_restored_without_a_message(self) -> None:
        old = advance(OneCycle(make_optimizer(), 1.0, total_steps=6), 4)
        new = OneCycle(make_optimizer(), 1.0, total_steps=6)
        assert load_scheduler(new, old.state_dict()) == []
        assert new.state_dict() == old.state_dict()

    def test_other_length_of_the_checkpoint_is_reported(self) -> None:
        old = advance(lr_scheduler.CosineAnnealingLR(make_optimizer(), 6), 4)
        new = lr_scheduler.CosineAnnealingLR(make_optimizer(), 12)
        assert load_scheduler(new, old.state_dict()) == [
            "CosineAnnealingLR was built with T_max=12, and the checkpoint contains 6. The checkpoint determines the "
            "learning rate."
        ]
        assert new.T_max == 6
