"""The best result of a metric."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hookbus import Hook, HookBus, Run
from hookbus._run.results import BestResult, BestResults, LogSource, merge_ranks
from hookbus.errors import MetricError
from hookbus.testing.side_effects import record_device_reads
from hookbus_logger import JsonlHook, LoggerHook, read_jsonl
from tests import toys


@pytest.mark.parametrize("path", [None, Path("runs/x/checkpoints/best_loss.pth")])
def test_best_is_restored_from_its_json_state(path: Path | None) -> None:
    best = BestResult(0.25, epoch=2, step=6, weights="averaged", path=path)
    state = json.loads(json.dumps(best.state_dict()))
    assert state == {"value": 0.25, "epoch": 2, "step": 6, "weights": "averaged", "path": path and path.name}
    assert BestResult.from_state(state) == replace(best, path=path and Path(path.name))


def test_unknown_metric_lists_the_metrics_with_a_best_result() -> None:
    results = BestResults()
    empty = re.escape("run.best: no best result of the metric 'val/accuracy'. No metric has a best result yet.")
    recorder = re.escape("such as {type: checkpoint, save_best: true, best_metric: val/accuracy}.")
    with pytest.raises(MetricError, match=f"^{empty} The checkpoint hook records .*{recorder}$"):
        results["val/accuracy"]
    results.update({"val/accuracy": BestResult(0.5, 1, 4), "val/loss": BestResult(0.25, 1, 4)})
    with pytest.raises(KeyError, match=r"Did you mean 'val/accuracy'\? Available: val/accuracy, val/loss\. "):
        results["val/acuracy"]
    assert results["val/loss"].value == 0.25
    assert (results.get("accuracy"), "accuracy" in results) == (None, False)


def test_best_results_of_a_run_and_of_one_that_continues_it_name_the_metric() -> None:
    with HookBus([]).run() as run, pytest.raises(MetricError, match="no best result of the metric 'val/loss'"):
        run.best["val/loss"]
    assert type(Run(run.bus, previous=run).best) is BestResults


class TestPath:
    """The files of the run `a` are in the directory `b` after it was renamed or copied."""

    def make(self, root: Path, name: str) -> Path:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        return path

    def find(self, stored: Path | str, *directories: Path) -> Path | None:
        state = {**BestResult(0.5, 1, 1).state_dict(), "path": str(stored)}
        return BestResult.from_state(state).locate(directories).path

    def test_path_is_stored_relative_to_the_work_directory(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        for path, stored in {"a/checkpoints/best.pth": "checkpoints/best.pth", "out/best.pth": "best.pth"}.items():
            for best in (BestResult(0.5, 1, 1, path=Path(path)), BestResult(0.5, 1, 1, path=tmp_path / path)):
                assert best.state_dict(Path("a"))["path"] == best.state_dict(tmp_path / "a")["path"] == stored

    def test_file_is_found_in_the_renamed_directory(self, tmp_path: Path) -> None:
        path = self.make(tmp_path, "b/checkpoints/best.pth")
        assert self.find("checkpoints/best.pth", tmp_path / "b", tmp_path / "b/checkpoints") == path

    def test_file_is_found_in_a_separate_checkpoint_directory(self, tmp_path: Path) -> None:
        path = self.make(tmp_path, "out/best.pth")
        assert self.find("best.pth", tmp_path / "b", tmp_path / "out") == path

    @pytest.mark.parametrize("is_absolute", [True, False])
    def test_path_of_an_early_version_is_found_by_name_in_the_copy(self, tmp_path: Path, is_absolute: bool) -> None:
        original = self.make(tmp_path, "a/checkpoints/best.pth")
        copy = self.make(tmp_path, "b/checkpoints/best.pth")
        stored = original if is_absolute else "a/checkpoints/best.pth"
        assert self.find(stored, tmp_path / "b", tmp_path / "b/checkpoints") == copy

    def test_file_outside_of_the_run_is_found_by_its_path(self, tmp_path: Path) -> None:
        path = self.make(tmp_path, "elsewhere/best.pth")
        assert self.find(path, tmp_path / "b") == path

    def test_missing_file_is_expected_in_the_directory_of_the_run(self, tmp_path: Path) -> None:
        assert self.find("checkpoints/best.pth", tmp_path / "b") == tmp_path / "b/checkpoints/best.pth"


def test_values_of_ranks_are_those_of_the_lowest_rank_that_logged_them() -> None:
    gathered = [{"val/a": 1.0}, {"val/a": 1.0, "val/b": 2.0}, {"val/b": 2.0}]
    assert merge_ranks(gathered) == ({"val/a": 1.0, "val/b": 2.0}, [])


def test_values_that_differ_between_ranks_are_described() -> None:
    assert merge_ranks([{"val/a": 1.0}, {"val/a": 4.0}]) == ({"val/a": 1.0}, ["val/a is 1, 4"])


def test_equal_nan_of_ranks_is_no_difference() -> None:
    _, differing = merge_ranks([{"val/a": float("nan")}, {"val/a": float("nan")}])
    assert differing == []


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
