"""Hooks in distributed training: stops, best files, logs, trackers and traces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

if TYPE_CHECKING:
    from tests.distributed.conftest import Launch, LaunchResult

pytestmark = pytest.mark.slow

TORCH_PREFIXES = ("USDT:", "[rank1]:[W")
"""Prefixes of the lines that the profiler of torch prints on every rank."""

TRAINING = """
    import torch
    import toys
    from hookbus import Hook, Writer, WriterHook
    from hookbus_early_stopping import EarlyStoppingHook
    from hookbus_eval import DistEvalHook
    from hookbus_logger import JsonlHook, LoggerHook
    from hookbus_profiler import ProfilerHook
    from hookbus_sync import SyncMetricsHook
    from hookbus_system_monitor import SystemMonitorHook
    from hookbus_tensorboard import TensorBoardHook
    from hookbus_timer import IterTimerHook

    writer_ranks = []

    class NullWriter(Writer):
        def write_scalar(self, name, value, step): ...
        def write_image(self, name, image, step, caption=None): ...
        def write_config(self, config): ...
        def resume(self, since, step):
            return frozenset()

    class TrackerHook(WriterHook):
        def writer_factory(self, run):
            writer_ranks.append(run.ranks.rank)
            return NullWriter

    class RecordLosses(Hook):
        def __init__(self):
            super().__init__()
            self.losses = []

        def after_train_iter(self, outputs):
            self.losses.append(float(outputs["loss"]))

    recorder = RecordLosses()
    trainer = toys.trainer(
        epochs=6, val_loader=toys.loader(4, 13), metrics=["accuracy"], work_dir="run", default_hooks=True,
        hooks=[
            LoggerHook(interval=2), JsonlHook(interval=2), TensorBoardHook(interval=2), TrackerHook(), recorder,
            DistEvalHook(metric="loss"), EarlyStoppingHook(monitor="val_loss", patience=2, min_delta=100.0),
            SyncMetricsHook(), SystemMonitorHook(interval=2), IterTimerHook(interval=2),
            ProfilerHook(schedule={"wait": 1, "warmup": 1, "active": 1}),
        ],
    )
    run = trainer.fit()
    report({
        "outcome": run.outcome, "epochs": run.epochs_done, "reasons": run.stop_reasons, "losses": recorder.losses,
        "best": {n: [b.value, b.epoch, str(b.path), b.path.exists()] for n, b in run.best.items()},
        "results": dict(run.metrics.results), "writer_ranks": writer_ranks,
    })
"""


@pytest.fixture(scope="module")
def completed(module_launch: Launch) -> LaunchResult:
    """Result of a launch with two ranks."""
    return module_launch(TRAINING)


@pytest.fixture(scope="module")
def work_dir(completed: LaunchResult) -> Path:
    """Work directory of the run."""
    return completed.log_dir.parent.parent / "run"


@pytest.fixture(scope="module")
def rows(work_dir: Path) -> list[dict[str, Any]]:
    """Rows of the JSON Lines log."""
    return [json.loads(line) for line in (work_dir / "logs" / "metrics.jsonl").read_text().splitlines()]


def test_all_ranks_stop_at_the_same_epoch_for_the_same_reason(completed: LaunchResult) -> None:
    first, second = completed.reports[0], completed.reports[1]

    assert first["outcome"] == second["outcome"] == "stopped"
    assert first["epochs"] == second["epochs"] == 3
    assert first["reasons"] == second["reasons"]
    assert first["results"] == second["results"]


def test_all_ranks_report_the_same_existing_best_checkpoint(completed: LaunchResult, work_dir: Path) -> None:
    best = completed.reports[0]["best"]

    assert best == completed.reports[1]["best"]
    assert {name: exists for name, (_, _, _, exists) in best.items()} == {"val/loss": True, "val/accuracy": True}
    assert {name: (value, epoch) for name, (value, epoch, _, _) in best.items()} == {
        name: (value, 3) for name, value in completed.reports[0]["results"].items()
    }


def test_metrics_rows_are_unique_and_averaged_across_ranks(completed: LaunchResult, rows: list[dict[str, Any]]) -> None:
    keys = [(row["kind"], row["step"], *sorted(row["values"])) for row in rows]
    assert len(set(keys)) == len(keys)
    assert [row["step"] for row in rows if row["kind"] == "val"] == [4, 8, 12]
    assert [row for row in rows if row["kind"] == "val"][-1]["values"] == completed.reports[0]["results"]

    means = [sum(pair) / 2 for pair in zip(completed.reports[0]["losses"], completed.reports[1]["losses"], strict=True)]
    logged = {row["step"]: row["values"]["train/loss"] for row in rows if row["kind"] == "train"}
    assert logged == {step: pytest.approx(sum(means[step - 2 : step]) / 2, rel=1e-12) for step in range(2, 13, 2)}


def test_samples_per_second_are_summed_across_ranks(rows: list[dict[str, Any]]) -> None:
    rates = [row["values"] for row in rows if "throughput/samples_per_second" in row["values"]]

    for values in rates:  # two ranks with a batch size of 8
        assert values["throughput/samples_per_second"] == pytest.approx(16 * values["throughput/iterations_per_second"])


def test_only_rank_0_creates_a_writer(completed: LaunchResult, work_dir: Path) -> None:
    assert [completed.reports[rank]["writer_ranks"] for rank in (0, 1)] == [[0], []]
    assert len(list(work_dir.rglob("events.out.tfevents.*"))) == 1


def test_tensorboard_scalars_match_the_rows_of_the_log(work_dir: Path, rows: list[dict[str, Any]]) -> None:
    (file,) = work_dir.rglob("events.out.tfevents.*")
    events = EventAccumulator(str(file.parent)).Reload()

    for kind, name in (("train", "train/loss"), ("val", "val/accuracy")):
        scalars = {event.step: event.value for event in events.Scalars(name)}
        written = {row["step"]: row["values"][name] for row in rows if row["kind"] == kind}
        assert scalars == {step: pytest.approx(value, rel=1e-6) for step, value in written.items()}


def test_each_rank_writes_its_own_trace(work_dir: Path) -> None:
    traces = sorted(path.name for path in work_dir.rglob("*.pt.trace.json.gz"))

    assert traces == [f"rank{rank}-cycle1-iteration3.pt.trace.json.gz" for rank in (0, 1)]


def test_only_rank_0_prints(completed: LaunchResult) -> None:
    assert "epoch 3/6" in completed.output(0)
    assert [line for line in completed.output(1).splitlines() if not line.startswith(TORCH_PREFIXES)] == []


def test_early_stopping_uses_the_metrics_of_rank_0_if_the_ranks_differ(launch: Launch) -> None:
    script = """
        from hookbus import HookBus
        from hookbus_early_stopping import EarlyStoppingHook
        from torch import nn

        losses = iter([[1.0, 1.0, 1.0, 1.0], [4.0, 3.0, 2.0, 1.0]][RANK])
        bus = HookBus([EarlyStoppingHook(monitor="loss", mode="min", patience=2, restore_best_weights=False)])
        with bus.run(model=nn.Linear(1, 1), epochs=4, validate=lambda: {"loss": next(losses)}) as run:
            for _ in run.epochs():
                bus.emit("before_train_epoch")
                bus.emit("before_train_iter")
                bus.emit("after_train_iter")
                bus.emit("after_train_epoch")
                run.request_validation()
        report([run.epochs_done, run.outcome])
    """
    assert launch(script).reports == {0: [3, "stopped"], 1: [3, "stopped"]}
