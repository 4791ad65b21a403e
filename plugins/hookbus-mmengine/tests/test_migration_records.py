"""Rows of the migration table of MMEngine: hooks that log, measure and write files."""

from __future__ import annotations

import gzip
import json
import logging
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("mmengine", reason="MMEngine is not installed: run `make bridges HOST=mmengine`")

from mmengine.config import Config
from mmengine.hooks import Hook as ForeignHook
from mmengine.hooks import ProfilerHook as ForeignProfilerHook
from mmengine.runner import Runner

from hookbus import Hook
from hookbus.testing import HostTask, RecordingBus
from hookbus_logger import JsonlHook, LoggerHook
from hookbus_profiler import ProfilerHook
from hookbus_runtime import RuntimeInfoHook
from hookbus_system_monitor import MemoryProfilerHook
from hookbus_timer import IterTimerHook, TimeTrackingHook
from tests.wandb_files import read_rows

from .migration_rows import attach_and_train, build_plain_runner, load_detection_hook, runs_row

Records = list[tuple[int, float]]

STEPS = [2, 4, 6, 8, 10, 12]


def build_logging_runner(directory: Path, backend: dict[str, Any], **arguments: Any) -> Runner:
    """Return a Runner that logs means over 2 iterations, and the results of epochs, to a backend."""
    return build_plain_runner(
        HostTask(),
        directory,
        **{"default_hooks": {"checkpoint": None, "logger": {"type": "LoggerHook", "interval": 2}}, **arguments},
        log_processor={"type": "LogProcessor", "window_size": 2},
        visualizer={"type": "Visualizer", "vis_backends": [backend]},
    )


def train_with(directory: Path, backend: dict[str, Any], *hooks: Any, **arguments: Any) -> Any:
    """Train with a backend of MMEngine and hooks of hookbus, and return the bus."""
    runner = build_logging_runner(directory, backend, **arguments)
    return attach_and_train(runner, *hooks, work_dir=directory / "hookbus")


def read_lines(directory: Path, pattern: str) -> list[dict[str, Any]]:
    (path,) = directory.rglob(pattern)
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def read_local(directory: Path, name: str, *, is_result: bool = False) -> Records:
    """Return the steps and values in the file of MMEngine, in which results of validations have no learning rate."""
    rows = read_lines(directory / "host", "scalars.json")
    return [(row["step"], row[name]) for row in rows if name in row and is_result != ("lr" in row)]


def read_jsonl(directory: Path, name: str, step: str = "step") -> Records:
    rows = read_lines(directory / "hookbus", "metrics.jsonl")
    return [(row[step], row["values"][name]) for row in rows if name in row.get("values", ())]


def assert_same(native: Records, ours: Records, steps: list[int]) -> None:
    """Assert that both have records of the steps, with values that are the same in single precision."""
    assert [step for step, _ in native] == [step for step, _ in ours] == steps
    assert [np.float32(value) for _, value in native] == [np.float32(value) for _, value in ours]
    assert len({value for _, value in native}) > 1


@runs_row("`LocalVisBackend`", "`jsonl`, without the mean over validations that MMEngine writes for a loss")
def test_file_contains_the_same_records(tmp_path: Path) -> None:
    train_with(tmp_path, {"type": "LocalVisBackend"}, JsonlHook(interval=2))
    assert_same(read_local(tmp_path, "loss"), read_jsonl(tmp_path, "train/loss"), STEPS)
    (_, first), (_, second) = results = read_jsonl(tmp_path, "val/loss", "epoch")
    assert [epoch for epoch, _ in results] == [1, 2]
    native = read_local(tmp_path, "loss", is_result=True)
    assert native == [(1, first), (2, pytest.approx((first + second) / 2, rel=1e-6))]


@runs_row(
    "`runner.message_hub.update_scalar`", "`run.log`; a record contains the mean of its interval, not the last value"
)
def test_logged_value_is_recorded(tmp_path: Path) -> None:
    class Native(ForeignHook):  # type: ignore[misc]
        def after_train_iter(self, runner: Any, **arguments: Any) -> None:
            runner.message_hub.update_scalar("train/index", runner.iter)

    class Ours(Hook):
        def after_train_iter(self, run: Any) -> None:
            run.log(index=run.iter)

    train_with(tmp_path, {"type": "LocalVisBackend"}, JsonlHook(interval=2), Ours(), custom_hooks=[Native()])
    assert read_local(tmp_path, "index") == [(step, step - 1) for step in STEPS]
    assert read_jsonl(tmp_path, "train/index") == [(step, step - 1.5) for step in STEPS]


@runs_row("`runner.visualizer`", '`run.get("visualizer")`')
def test_visualizer_writes_the_same_scalar(tmp_path: Path) -> None:
    class Native(ForeignHook):  # type: ignore[misc]
        def after_train_epoch(self, runner: Any) -> None:
            runner.visualizer.add_scalar("score", 0.5 + runner.epoch, runner.iter)

    class Ours(Hook):
        def after_train_epoch(self, run: Any) -> None:
            run.get("visualizer").add_scalar("score", 0.5 + run.epoch, run.iters_done)

    train_with(tmp_path, {"type": "LocalVisBackend"}, JsonlHook(), Ours(), custom_hooks=[Native()])
    native = [(row["step"], row["score"]) for row in read_lines(tmp_path / "host", "scalars.json") if "score" in row]
    assert native == read_jsonl(tmp_path, "score") == [(6, 0.5), (12, 1.5)]


@runs_row("`TensorboardVisBackend`", "`tensorboard`")
@pytest.mark.slow
def test_event_files_contain_the_same_records(tmp_path: Path) -> None:
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    from hookbus_tensorboard import TensorBoardHook

    train_with(tmp_path, {"type": "TensorboardVisBackend"}, TensorBoardHook(interval=2))

    def read(directory: str, name: str) -> Records:
        (path,) = (tmp_path / directory).rglob("events.out.tfevents.*")
        return [
            (event.step, event.value) for event in event_accumulator.EventAccumulator(str(path)).Reload().Scalars(name)
        ]

    # MMEngine writes the results of epochs 1 and 2 to the same curve.
    native = [record for record in read("host", "loss") if record[0] not in (1, 2)]
    assert_same(native, [record for record in read("hookbus", "train/loss") if record[0] != 2], STEPS[1:])


@runs_row("`MLflowVisBackend`", "`mlflow`")
@pytest.mark.slow
def test_mlflow_contains_the_same_records(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    from hookbus_mlflow import MLflowHook
    from hookbus_mlflow.target import ensure_database

    artifacts, uri = (tmp_path / "artifacts").as_uri(), f"sqlite:///{tmp_path / 'mlflow.db'}"
    ensure_database(tmp_path / "mlflow.db", artifacts)
    names = {"exp_name": "native", "artifact_location": artifacts}
    backend = {"type": "MLflowVisBackend", "tracking_uri": uri, **names}
    runner = build_logging_runner(tmp_path, backend)
    # A Runner that is built without a file of its configuration does not pass the directory of the files to upload.
    runner.visualizer.add_config(Config({"work_dir": str(tmp_path / "host")}))
    ours = MLflowHook(tracking_uri=uri, experiment="ours", interval=2)
    attach_and_train(runner, ours, work_dir=tmp_path / "hookbus")

    def read(experiment: str, name: str) -> Records:
        client = mlflow.MlflowClient(uri)
        (run,) = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
        metrics = client.get_metric_history(run.info.run_id, name)
        return sorted((metric.step, metric.value) for metric in metrics)

    assert read("native", "lr") == read("ours", "lr") == [(step, 0.1) for step in STEPS]
    losses = [record for record in read("native", "loss") if record[0] not in (1, 2)]
    assert_same(losses, [record for record in read("ours", "train/loss") if record[0] != 2], STEPS[1:])


@runs_row("`WandbVisBackend`", "`wandb`")
@pytest.mark.slow
def test_wandb_contains_the_same_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    from hookbus_wandb import WandbHook

    for name, value in {"MODE": "offline", "SILENT": "true", "ERROR_REPORTING": "false"}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    for name in ("CACHE_DIR", "CONFIG_DIR", "DATA_DIR"):
        monkeypatch.setenv(f"WANDB_{name}", str(tmp_path))
    # The version of W&B has no `join`, which MMEngine calls.
    monkeypatch.setattr(wandb, "join", wandb.finish, raising=False)
    backend = {"type": "WandbVisBackend", "init_kwargs": {"project": "native"}}
    train_with(tmp_path, backend, WandbHook(interval=2))

    def read(directory: str, name: str, step: str) -> Records:
        return [(row[step], row[name]) for row in read_rows(tmp_path / directory) if name in row]

    # MMEngine passes no steps: W&B numbers the rows, among them those of the results after the third and the sixth.
    native, ours = read("host", "loss", "_step"), read("hookbus", "train/loss", "trainer/step")
    assert [step for step, _ in native] == [*range(8)]
    means = [value for step, value in native if step not in (3, 7)]
    assert_same([*zip(STEPS, means, strict=True)], ours, STEPS)


# -- the console -----------------------------------------------------------------------------------


class Lines(logging.Handler):
    """Handler that keeps the messages."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def capture_lines(runner: Runner) -> list[str]:
    """Return the list to which a Runner logs from now on."""
    lines = Lines()
    runner.logger.setLevel("INFO")
    runner.logger.addHandler(lines)
    return lines.texts


def find_positions(lines: list[str], pattern: str) -> list[tuple[int, ...]]:
    return [tuple(map(int, match.groups())) for line in lines if (match := re.search(pattern, line))]


@runs_row("`LoggerHook`", "`logger`, which also logs an incomplete interval at the end of the training")
@pytest.mark.parametrize(("interval", "last"), [(2, []), (4, [(2, 6)])])
def test_same_lines_are_logged(
    interval: int, last: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logging_hook = {"checkpoint": None, "logger": {"type": "LoggerHook", "interval": interval}}
    runner = build_logging_runner(tmp_path, {"type": "LocalVisBackend"}, default_hooks=logging_hook)
    native = capture_lines(runner)
    capsys.readouterr()
    attach_and_train(runner, LoggerHook(interval=interval))
    ours = capsys.readouterr().out.splitlines()
    trained = find_positions(native, r"Epoch\(train\)\s+\[(\d+)\]\[\s*(\d+)/6\]")
    assert trained == [(epoch, i) for epoch in (1, 2) for i in range(interval, 7, interval)]
    assert find_positions(ours, r"train\s+epoch (\d)/2\s+(\d)/6 ") == trained + last
    results = find_positions(native, r"Epoch\(val\)\s+\[(\d+)\]\[\s*3/3\]")
    assert results == find_positions(ours, r"  epoch (\d)/2 .*val/loss") == [(1,), (2,)]


# -- measurements ----------------------------------------------------------------------------------


@runs_row("`IterTimerHook`", "`iter_timer`, `time_tracking`")
def test_each_iteration_is_timed(tmp_path: Path) -> None:
    bus = RecordingBus([IterTimerHook(interval=1), TimeTrackingHook()])
    runner = build_plain_runner(HostTask(), tmp_path)
    bus.attach(runner)
    runner.train()
    scalars = runner.message_hub.log_scalars
    values = [event["values"] for event in bus.get_arguments("log_scalars")]
    for native, ours in (("train/time", "time/iter"), ("train/data_time", "time/data")):
        assert len(scalars[native].data[0]) == 12
        assert sum(ours in logged for logged in values) == 12
    assert runner.message_hub.get_info("eta") >= 0
    assert sum("time/eta" in logged for logged in values) == 12
    assert sum("time/epoch" in logged for logged in values) == 2


@runs_row("`MemoryProfilerHook`", "`system_monitor`, `memory_profiler`")
def test_memory_is_logged_in_the_same_iterations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Its annotations import compiled operators, and the memory of the process is that of another package.
    monkeypatch.setitem(sys.modules, "mmdet.structures", SimpleNamespace(DetDataSample=object))
    monkeypatch.setitem(sys.modules, "memory_profiler", SimpleNamespace(memory_usage=lambda: [1.0]))
    foreign = load_detection_hook("memory_profiler_hook", "MemoryProfilerHook")
    runner = build_plain_runner(HostTask(validate=False), tmp_path, custom_hooks=[foreign(interval=3)])
    lines, bus = capture_lines(runner), RecordingBus([MemoryProfilerHook(interval=3)])
    bus.attach(runner)
    runner.train()
    values = [event["values"] for event in bus.get_arguments("log_scalars")]
    assert sum("Memory information" in line for line in lines) == 4
    assert sum("memory/process_gb" in logged for logged in values) == 4


def count_operators(text: str) -> int:
    """Return the number of linear layers that a trace contains."""
    return sum(event["name"] == "aten::addmm" for event in json.loads(text)["traceEvents"])


@runs_row("`ProfilerHook`", "`profiler`")
@pytest.mark.slow
def test_trace_contains_the_same_operators(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    native = ForeignProfilerHook(by_epoch=False, profile_times=2, json_trace_path=str(path))
    build_plain_runner(HostTask(epochs=1), tmp_path, custom_hooks=[native]).train()
    cycle = {"wait": 0, "warmup": 0, "active": 2}
    profiled = build_plain_runner(HostTask(epochs=1), tmp_path / "ours")
    ours = ProfilerHook(profile_iters=2, schedule=cycle, with_flops=False)
    attach_and_train(profiled, ours, work_dir=tmp_path / "hookbus")
    (trace,) = (tmp_path / "hookbus").rglob("*.trace.json.gz")
    # Two layers in each of two iterations.
    assert count_operators(path.read_text()) == count_operators(gzip.decompress(trace.read_bytes()).decode()) == 4


@runs_row("`RuntimeInfoHook`", "`runtime_info`; every writer logs learning rates, losses and results")
def test_information_of_the_run_is_recorded(tmp_path: Path) -> None:
    runner = build_logging_runner(tmp_path, {"type": "LocalVisBackend"}, randomness={"seed": 3})
    bus = attach_and_train(runner, RuntimeInfoHook(), JsonlHook(interval=1), work_dir=tmp_path / "hookbus", seed=3)
    hub = runner.message_hub
    assert hub.get_info("seed") == bus.current.metadata["seed"] == 3
    assert hub.get_info("max_iters") == bus.current.limit("iter") == 12
    for native, ours in (("train/lr", "lr"), ("train/loss", "train/loss"), ("val/loss", "val/loss")):
        values = hub.log_scalars[native].data[0]
        assert [np.float32(value) for _, value in read_jsonl(tmp_path, ours)] == [np.float32(v) for v in values]
