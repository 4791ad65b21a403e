"""Tests of the statements of the bus at a point: clock, default arguments, validations, weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

from hookbus import Hook, HookBus
from hookbus.lifecycle import POINTS
from hookbus.testing import RecordingBus


def test_omitted_arguments_default_to_the_values_of_the_run() -> None:
    bus: Any = RecordingBus()
    model, optimizer = nn.Linear(1, 1), object()
    run = bus.current
    run.model, run.optimizer, run.mode, run.config = model, optimizer, "test", {"seed": 3}
    run.clock.steps_done, run.clock.epochs_done = 7, 2
    bus.fire("before_epoch")
    for point in POINTS.values():
        if not {"batch", "metrics", "epoch"} & set(point.args):
            bus.fire(point.name)
    known = {"model": model, "optimizer": optimizer, "mode": "test", "config": {"seed": 3}, "step": 7, "epoch": 2}
    for event in bus.events:
        for name, value in event.arguments.items():
            assert value is known.get(name) or value == known.get(name), (event.point, name)


def test_arguments_of_the_loop_override_the_values_of_the_run() -> None:
    bus: Any = RecordingBus()
    bus.current.model = nn.Linear(1, 1)
    bus.emit("after_train_epoch", epoch=40, model="mine", metrics={"a": 1.0})
    assert bus.get_arguments("after_train_epoch") == [{"epoch": 40, "model": "mine", "metrics": {"a": 1.0}}]


def test_loss_defaults_to_the_loss_of_the_outputs() -> None:
    bus: Any = RecordingBus()
    bus.emit("after_train_iter", outputs={"loss": 0.5})
    bus.emit("after_train_iter", outputs={"loss": 0.5}, loss=0.25)
    bus.emit("after_train_iter", outputs={"score": 1.0})
    bus.emit("after_forward", outputs="no mapping")
    assert [arguments["loss"] for arguments in bus.get_arguments("after_train_iter")] == [0.5, 0.25, None]
    assert [arguments["loss"] for arguments in bus.get_arguments("after_forward")] == [None]


def test_step_is_the_number_of_completed_optimizer_steps() -> None:
    bus: Any = RecordingBus()
    for i in range(2):
        bus.emit("before_train_iter", batch_idx=i)
        bus.emit("after_train_iter", batch_idx=i)
    assert [(event.point, event.arguments["step"]) for event in bus.events] == [
        ("before_train_iter", 0),
        ("after_train_iter", 1),
        ("before_train_iter", 1),
        ("after_train_iter", 2),
    ]


def test_metrics_contain_epoch_means_and_latest_results() -> None:
    bus: Any = RecordingBus()
    bus.emit("before_epoch")
    bus.emit("before_train_epoch")
    for loss in (1.0, 2.0, 6.0):
        bus.emit("after_train_iter", outputs={"loss": loss})
    bus.emit("after_train_epoch")
    bus.emit("before_val")
    bus.emit("before_val_epoch")
    for batch, score in (([torch.zeros(3)], 0.5), ([torch.zeros(1)], 0.1)):
        bus.emit("before_val_iter", batch=batch)
        bus.emit("after_val_iter", batch=batch, outputs={"accuracy": score})
    bus.emit("after_val_epoch")
    bus.emit("after_val")
    bus.emit("after_epoch")
    (trained,), (evaluated,), (after,), (epoch,) = (
        bus.get_arguments(point) for point in ("after_train_epoch", "after_val_epoch", "after_val", "after_epoch")
    )
    assert dict(trained["metrics"]) == {"train/loss": 3.0}
    assert dict(evaluated["metrics"]) == dict(after["metrics"]) == {"val/accuracy": pytest.approx(0.4, abs=1e-12)}
    assert dict(epoch["metrics"]) == {"train/loss": 3.0, "val/accuracy": pytest.approx(0.4, abs=1e-12)}


def test_metrics_have_full_names_before_any_hook_is_called() -> None:
    bus: Any = RecordingBus()
    bus.emit("after_val_epoch", metrics={"accuracy": torch.tensor(0.5), "val/f1": 0.25})
    bus.emit("after_val_epoch", metrics={"accuracy": 0.75}, dataloader_name="noisy")
    bus.emit("after_test_epoch", metrics={"accuracy": 1})
    assert [dict(arguments["metrics"]) for arguments in bus.get_arguments("after_val_epoch")] == [
        {"val/accuracy": 0.5, "val/f1": 0.25},
        {"val/noisy/accuracy": 0.75},
    ]
    bus.emit("after_test")
    assert dict(bus.get_arguments("after_test")[0]["metrics"]) == {"test/accuracy": 1.0}


def test_validation_context_encloses_all_listeners() -> None:
    seen: list[str] = []
    bus: Any = HookBus()

    @contextmanager
    def averaged() -> Iterator[None]:
        seen.append("enter")
        yield
        seen.append("leave")

    class Watch(Hook):
        def before_val(self) -> None:
            seen.append("before_val")

        def after_val(self) -> None:
            seen.append("after_val")

    bus.register(Watch())
    bus.current.around_validation(averaged)
    for _ in range(2):
        bus.emit("before_val")
        bus.emit("after_val")
    assert seen == ["enter", "before_val", "after_val", "leave"] * 2


def test_declared_point_gets_defaults_by_argument_name() -> None:
    bus: Any = RecordingBus()
    seen: list[tuple[Any, ...]] = []
    bus.declare("after_value", args=("metrics", "loss", "step", "image"))
    bus.declare("after_testing_it", args=("outputs", "loss"))
    bus.on("after_value")(lambda metrics, loss, step, image: seen.append((dict(metrics), loss, step, image)))
    bus.on("after_testing_it", name="second")(lambda loss: seen.append((loss,)))
    bus.emit("before_epoch")
    bus.emit("after_train_iter", outputs={"loss": 2.0})
    bus.emit("after_value")
    bus.emit("after_testing_it", outputs={"loss": 4.0})
    assert seen == [({"train/loss": 2.0}, None, 1, None), (4.0,)]


def test_skip_request_applies_to_one_iteration() -> None:
    bus: Any = HookBus()
    bus.on("before_train_iter")(lambda run: run.request_skip_iter() if run.iter == 1 else None)
    skipped = []
    for _ in range(3):
        bus.emit("before_train_iter")
        skipped.append(bus.current.should_skip_iter)
        bus.emit("after_train_iter")
    assert skipped == [False, True, False]


def test_points_without_listeners_advance_the_clock() -> None:
    bus: Any = HookBus()
    run = bus.current
    for point in ("before_epoch", "before_train_epoch", "before_train_iter", "after_train_iter", "after_train_epoch"):
        bus.fire(point)
    assert (run.iters_done, run.epochs_done, run.epoch_complete) == (1, 1, True)
    bus.fire("after_epoch")
    assert run.epochs_done == 1


def test_weights_are_restored_after_the_last_save_and_validated_again() -> None:
    log: list[str] = []

    class Saver:
        def plan(self, run: Any, requests: Any) -> None:
            log.append("saved")

        def write(self, run: Any, checkpoint: Any) -> None: ...

    class Requesting(Hook):
        def before_run(self, run: Any) -> None:
            run.provide("checkpoint_saver", Saver())
            run.weights.restore_at_end(lambda: bool(log.append("restored")) or True)

        def after_train(self, run: Any) -> None:
            log.append("after_train")
            run.request_save("end")

        def after_run(self, run: Any) -> None:
            log.append(f"after_run, validated at {run.validations.validated_at}")

    bus: Any = HookBus([Requesting()])
    with bus.run(validate=lambda: {"loss": 1.0}) as run:
        bus.emit("after_train_iter")
        run.validate()
        assert run.validations.validated_at == 1
    assert log == ["after_train", "saved", "restored", "after_run, validated at -1"]


def test_weights_are_not_restored_after_a_failure() -> None:
    log: list[str] = []

    class Failing(Hook):
        def before_run(self, run: Any) -> None:
            run.weights.restore_at_end(lambda: bool(log.append("restored")) or True)

        def after_train_iter(self) -> None:
            raise RuntimeError("broken")

    bus: Any = HookBus([Failing()])
    with pytest.raises(RuntimeError, match="broken"), bus.run():
        bus.emit("after_train_iter")
    assert log == []
