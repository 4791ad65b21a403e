"""Tests of the plan of a training: its counts are those of the training itself."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn

from hookbus import Hook, Trainer, every, hookimpl, last, once, where
from hookbus._events.instrumentation import trace_hooks
from hookbus.trainer.plan import build_plan
from hookbus.trainer.planned_events import plan_events

BATCHES = [(torch.ones(2, 3), torch.zeros(2, 1))] * 7


class Listening(Hook):
    """Hook with a listener at each kind of point."""

    def before_run(self) -> None: ...

    @hookimpl(when=every(2))
    def before_epoch(self) -> None: ...

    @hookimpl(when=every(3, start=2))
    def before_train_iter(self) -> None: ...

    def after_backward(self) -> None: ...

    @hookimpl(when=every(2))
    def after_optimizer_step(self) -> None: ...

    @hookimpl(when=every(2, unit="step") | once(5))
    def after_train_iter(self) -> None: ...

    @hookimpl(when=every(2))
    def after_train_epoch(self) -> None: ...

    def before_val(self) -> None: ...

    @hookimpl(when=every(2))
    def after_val_iter(self) -> None: ...

    def after_val_epoch(self) -> None: ...

    def cleanup(self) -> None: ...


class Ending(Hook):
    """Hook with schedules that depend on the limit in epochs."""

    @hookimpl(when=every(0.5))
    def after_train_epoch(self) -> None: ...

    @hookimpl(when=last)
    def after_epoch(self) -> None: ...


class Validating(Hook):
    schedules_validation = True

    @hookimpl(when=every(4))
    def after_train_iter(self, run: Any) -> None:
        run.request_validation("every 4 iterations")


class Conditional(Hook):
    @hookimpl(when=where(lambda run: run.epoch > 3))
    def after_epoch(self) -> None: ...

    @hookimpl(when=every(10, unit="seconds"))
    def after_train_iter(self) -> None: ...

    def should_trigger(self, step: int) -> bool:
        raise AssertionError("evaluated without a run")

    def before_train_iter(self) -> None: ...

    def log_scalars(self) -> None: ...


def build(*hooks: Hook, **arguments: Any) -> Trainer:
    model = nn.Linear(3, 1)
    options: dict[str, Any] = {"epochs": 4, "train_loader": BATCHES, "val_loader": BATCHES[:5], **arguments}
    return Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        nn.functional.mse_loss,
        hooks=hooks,
        default_hooks=False,
        work_dir=None,
        device="cpu",
        **options,
    )


@pytest.mark.parametrize(
    ("hooks", "arguments"),
    [
        ((Ending(),), {}),
        ((), {"accumulate": 3}),
        ((Validating(),), {"accumulate": 2}),
        ((), {"epochs": None, "iterations": 17}),  # ends within the third epoch
        ((), {"validate_first": True}),
    ],
)
def test_counts_are_those_of_the_training(hooks: tuple[Hook, ...], arguments: dict[str, Any]) -> None:
    trainer = build(Listening(), *hooks, **arguments)
    events = plan_events(trainer, trainer.runs.create("train"))
    calls: Counter[tuple[str, str]] = Counter()
    with trace_hooks(trainer.bus, lambda hook, point: calls.update([(hook, point)])):
        run = trainer.fit()
    planned = {(row.hook, row.point): row.count for row in events.listeners}
    assert planned == {key: calls[key] for key in planned}
    assert (events.epochs, events.iterations, events.steps) == (run.epochs_done, run.iters_done, run.steps_done)
    assert events.validations is not None
    assert len(events.validations) == calls["listening", "before_val"]


def test_first_numbers_are_in_the_unit_of_the_point() -> None:
    trainer = build(Listening(), Ending())
    events = plan_events(trainer, trainer.runs.create("train"))
    first = {row.point: (row.unit, row.first) for row in events.listeners}
    assert first["before_epoch"] == ("epoch", [2, 4])
    assert first["before_train_iter"] == ("iter", [2, 5, 8])
    assert first["after_optimizer_step"] == ("step", [2, 4, 6])
    assert first["after_train_iter"] == ("iter", [2, 4, 5])
    assert first["after_train_epoch"] == ("epoch", [2, 4])
    assert first["after_epoch"] == ("epoch", [4])
    assert first["after_val_iter"] == ("batch", [2, 4, 2])
    assert first["before_run"] == (None, [])
    assert events.validations == [7, 14, 21, 28]


def test_truncated_epoch_has_no_number() -> None:
    class Plain(Hook):
        def after_epoch(self) -> None: ...

    trainer = build(Plain(), epochs=None, iterations=5)
    (row,) = plan_events(trainer, trainer.runs.create("train")).listeners
    assert (row.count, row.first) == (1, [])


def test_schedules_that_depend_on_the_run_have_no_count() -> None:
    trainer = build(Conditional())
    events = plan_events(trainer, trainer.runs.create("train"))
    assert {row.point: row.count for row in events.listeners} == dict.fromkeys(
        ("before_train_iter", "after_train_iter", "after_epoch", "log_scalars")
    )


def test_unknown_length_of_an_epoch() -> None:
    trainer = build(Listening(), epochs=None, iterations=5, train_loader=iter(BATCHES), val_loader=None)
    events = plan_events(trainer, trainer.runs.create("train"))
    counts = {row.point: row.count for row in events.listeners}
    assert (events.epochs, events.iterations, events.validations) == (None, 5, None)
    assert (counts["before_train_iter"], counts["before_epoch"]) == (2, None)


def test_plan_changes_nothing() -> None:
    class Planning(Hook):
        requires_work_dir = True

    trainer = build(Listening(), Planning())
    before = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    plan = build_plan(trainer)
    assert (plan.work_dir, plan.files, plan.unknown) == (None, [], ["planning"])
    assert all(torch.equal(tensor, before[name]) for name, tensor in trainer.model.state_dict().items())
    assert trainer.bus.current.mode != "train" or trainer.bus.current.iters_done == 0
