"""Tests of `log_scalars` as the one point that everything logged passes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from hookbus import Hook, HookBus, Run
from hookbus._run.recording import LogSource
from hookbus.testing.side_effects import record_device_reads
from hookbus_logger import JsonlHook, LoggerHook, read_jsonl
from tests import toys


class Observer(Hook):
    """Store everything that passes `log_scalars`."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(settings)
        self.events: list[tuple[LogSource | None, int, dict[str, Any]]] = []

    def log_scalars(self, run: Run, values: Mapping[str, Any], step: int) -> None:
        self.events.append((run.log_source(values), step, dict(values)))

    def get(self, stage: str) -> list[tuple[int, dict[str, Any]]]:
        return [(step, values) for source, step, values in self.events if source and source.stage == stage]


def log_iteration(run: Run) -> None:
    run.log(x=float(run.iters_done))


@pytest.mark.parametrize("priority", [0, 100])
def test_training_records_are_those_of_the_log(priority: int, tmp_path: Path) -> None:
    observer = Observer(priority=priority)
    trainer = toys.trainer(observer, JsonlHook(interval=2), epochs=2, val_loader=toys.pairs(1), work_dir=tmp_path / "a")
    trainer.bus.on("after_train_iter")(log_iteration)
    trainer.fit()

    rows = list(read_jsonl(tmp_path / "a" / "logs" / "metrics.jsonl"))
    for stage, steps in (("train", [2, 5, 6]), ("val", [3, 6])):
        logged = [(row["step"], row["values"]) for row in rows if row["kind"] == stage]
        assert observer.get(stage) == logged
        assert [step for step, _ in logged] == steps
    assert [values["train/x"] for _, values in observer.get("train")] == [1.5, 4.5, 6.0]
    assert len(observer.events) == 5
    assert {type(value) for _, _, values in observer.events for value in values.values()} == {float}


def test_record_of_the_shortest_window_is_observed_once_per_step(tmp_path: Path) -> None:
    observer = Observer()
    hooks = [observer, JsonlHook(interval=4), LoggerHook(interval=2, by_epoch=False)]
    trainer = toys.trainer(*hooks, train_loader=toys.pairs(8), epochs=1, work_dir=tmp_path / "a")
    trainer.bus.on("after_train_iter")(log_iteration)
    trainer.fit()

    records = [(step, values["train/x"]) for step, values in observer.get("train")]
    assert records == [(2, 1.5), (4, 3.5), (6, 5.5), (8, 7.5)]


def test_record_of_an_epoch_after_another_of_its_last_step_is_not_observed(tmp_path: Path) -> None:
    observer = Observer()
    hooks = [observer, JsonlHook(interval=3, by_epoch=False), LoggerHook(interval=2, ignore_last=False)]
    toys.trainer(*hooks, epochs=2, work_dir=tmp_path / "a").fit()

    assert [step for step, _ in observer.get("train")] == [2, 3, 5, 6]


def test_results_are_observed_once_with_their_loader() -> None:
    observer = Observer()
    bus = HookBus([observer])
    bus.on("after_val_epoch")(lambda run: run.log(x=torch.tensor(2)))
    bus.on("after_val", name="whole")(lambda run: run.log(y=3))
    with bus.run():
        bus.emit("before_val")
        for name in ("a", "b"):
            bus.emit("before_val_epoch", dataloader_name=name)
            bus.emit("after_val_epoch", dataloader_name=name, metrics={"loss": 1})
        bus.emit("after_val", metrics={"loss": 1})
    assert observer.events == [
        (LogSource("val", "a"), 0, {"val/a/loss": 1.0, "val/a/x": 2.0}),
        (LogSource("val", "b"), 0, {"val/b/loss": 1.0, "val/b/x": 2.0}),
        (LogSource("val"), 0, {"val/loss": 1.0, "val/y": 3.0}),
    ]


def test_results_of_a_sanity_check_are_not_observed() -> None:
    observer = Observer()
    toys.trainer(observer, val_loader=toys.pairs(1), epochs=0, validate_first=True).fit()

    assert observer.events == []


def test_observed_values_are_read_only() -> None:
    bus = HookBus()
    seen: list[Any] = []
    bus.on("log_scalars")(lambda values: seen.append(values))
    with bus.run(validate=lambda: {"loss": 1.0}) as run:
        run.validate()
    with pytest.raises(TypeError):
        seen[0]["val/loss"] = 2.0


def test_values_that_a_listener_derives_have_no_source() -> None:
    def derive(run: Run, values: Mapping[str, Any]) -> None:
        if run.log_source(values):
            run.bus.emit("log_scalars", values={"twice": 2 * values["val/loss"]})

    observer = Observer(priority=0)
    bus = HookBus([observer])
    bus.on("log_scalars")(derive)
    with bus.run(validate=lambda: {"loss": 1.0}) as run:
        run.validate()
    assert observer.events == [(LogSource("val"), 0, {"val/loss": 1.0}), (None, 0, {"twice": 2.0})]


def test_observation_reads_no_tensor_between_records(tmp_path: Path) -> None:
    trainer = toys.trainer(Observer(), JsonlHook(interval=3), epochs=1, work_dir=tmp_path / "a")
    trainer.bus.on("after_train_iter")(lambda run: run.log(x=torch.ones(())))
    with record_device_reads(trainer.bus) as reads:
        trainer.fit()
    assert reads == []
