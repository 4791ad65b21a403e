"""Tests of the base class of hooks that log the means of training metrics every N iterations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from hookbus import Hook, Run, Trainer
from hookbus.errors import ConfigError
from hookbus.metrics import Metrics
from hookbus.testing import fake_training
from hookbus.writers import MetricRecorder


class Recorder(MetricRecorder):
    """Store records: iteration, step and mean loss."""

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self.records: list[tuple[int, int, float]] = []

    def write_record(self, run: Run, metrics: Metrics, step: int) -> None:
        self.records.append((run.iters_done, step, metrics["train/loss"]))


def test_each_interval_and_the_end_of_training_have_a_record() -> None:
    hook = Recorder(interval=2)

    fake_training([hook], epochs=1, batches=5, losses=float)

    assert hook.records == [(2, 2, 1.5), (4, 4, 3.5), (5, 5, 5.0)]


def test_record_that_is_due_between_two_steps_is_delivered_at_the_next_step() -> None:
    hook, model = Recorder(interval=2), nn.Linear(1, 1)
    options: dict[str, Any] = {"accumulate": 3, "epochs": 1, "work_dir": None, "default_hooks": False}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    batches = [torch.zeros(1, 1)] * 3

    Trainer(
        model, optimizer, step_fn=lambda model, x: model(x).sum(), train_loader=batches, hooks=[hook], **options
    ).fit()

    assert [(iteration, step) for iteration, step, _ in hook.records] == [(3, 1)]


class ValueRecorder(MetricRecorder):
    """Store the values of the optimizers at each record: iteration and values."""

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self.records: list[tuple[int, dict[str, float]]] = []

    def write_record(self, run: Run, metrics: Metrics, step: int) -> None:
        self.records.append((run.iters_done, self.get_optimizer_values(run)))


def build_trainer(*hooks: Hook, build: Any, iterations: int = 3, epochs: int = 2) -> Trainer:
    """Return a trainer whose model has two groups."""
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    optimizer = build([{"params": part.parameters()} for part in model])
    options: dict[str, Any] = {"epochs": epochs, "work_dir": None, "default_hooks": False}
    batches = [torch.zeros(1, 1)] * iterations
    return Trainer(
        model, optimizer, step_fn=lambda model, x: model(x).sum(), train_loader=batches, hooks=list(hooks), **options
    )


@pytest.mark.parametrize(
    ("settings", "iterations"),
    [({"interval": 2}, [2, 4, 6]), ({"logging_interval": "epoch"}, [3, 6])],
    ids=["step", "epoch"],
)
def test_records_contain_the_requested_values_of_the_optimizer(settings: Any, iterations: list[int]) -> None:
    rates = {"lr/0": 0.5, "lr/1": 0.5}
    more = {"momentum/0": 0.25, "momentum/1": 0.25, "weight_decay/0": 0.125, "weight_decay/1": 0.125}
    plain = ValueRecorder(name="plain", **settings)
    full = ValueRecorder(name="full", log_momentum=True, log_weight_decay=True, **settings)

    def build(groups: Any) -> Any:
        return torch.optim.SGD(groups, lr=0.5, momentum=0.25, weight_decay=0.125)

    build_trainer(plain, full, build=build).fit()
    assert plain.records == [(iteration, rates) for iteration in iterations]
    assert full.records == [(iteration, rates | more) for iteration in iterations]


def test_record_of_an_epoch_is_the_mean_over_the_epoch() -> None:
    hook = Recorder(logging_interval="epoch")
    fake_training([hook], epochs=2, batches=3, losses=float)
    assert hook.records == [(3, 3, 2.0), (6, 6, 5.0)]


def test_observer_receives_the_values_that_a_writer_logs() -> None:
    seen: list[Any] = []

    class Observer(Hook):
        def log_scalars(self, values: Any) -> None:
            seen.append(sorted(name for name in values if not name.startswith("train/")))

    recorder = ValueRecorder(interval=3, log_momentum=True)
    build_trainer(recorder, Observer(), build=lambda groups: torch.optim.Adam(groups), epochs=1).fit()
    assert seen == [["lr/0", "lr/1", "momentum/0", "momentum/1"]]


@pytest.mark.parametrize(
    ("settings", "build", "message"),
    [
        (
            {},
            lambda groups: torch.optim.SGD([{**group, "name": "a"} for group in groups]),
            "optimizer: names of parameter groups must be unique, .* got several groups named 'a'. Set another",
        ),
        (
            {"log_momentum": True},
            torch.optim.Adagrad,
            "log_momentum: no parameter group has a momentum, got Adagrad. Remove it.",
        ),
    ],
)
def test_values_that_cannot_be_logged_are_refused_before_the_training(settings: Any, build: Any, message: str) -> None:
    for start in ("check", "fit"):
        hook = ValueRecorder(**settings)
        trainer = build_trainer(hook, build=build)
        with pytest.raises(ConfigError, match=message):
            getattr(trainer, start)()
        assert hook.records == []


@pytest.mark.parametrize("setting", [{"interval": 3}, {"frequency": 2}, {"when": "every(2)"}])
def test_schedule_in_iterations_is_refused_with_one_record_per_epoch(setting: dict[str, Any]) -> None:
    message = f"{next(iter(setting))}: no effect with `logging_interval: epoch`"
    with pytest.raises(ConfigError, match=message):
        Recorder(logging_interval="epoch", **setting)


def test_recorder_without_write_record_raises_not_implemented_error() -> None:
    class Incomplete(MetricRecorder):
        """Recorder that does not write its records."""

        observer = False

    with pytest.raises(NotImplementedError, match="Incomplete: `write_record` is not implemented"):
        fake_training([Incomplete(interval=1)], epochs=1, batches=1)


def test_pending_record_is_requested_again_after_a_resume() -> None:
    hook = Recorder(interval=10)

    class Load(Hook):
        """Restore a state with a pending record before training."""

        def before_run(self, run: Run) -> None:
            hook.load_state_dict({"waiting": True})

    fake_training([hook, Load(priority=100)], epochs=1, batches=3, losses=float)

    assert hook.records == [(1, 1, 1.0), (3, 3, 2.5)]
    assert hook.state_dict() == {"waiting": False}
