"""Stops, best files, logs, trackers and traces of several processes: right numbers, in the right places, once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

if TYPE_CHECKING:
    from tests.distributed.conftest import Launch, Launched

pytestmark = pytest.mark.slow

OF_TORCH = ("USDT:", "[rank1]:[W")
"""What torch's profiler prints in every process."""

TRAINING = """
    import torch
    import toys
    from hookbus import Hook
    from hookbus import WriterHook
    from hookbus.writers import Writer
    from hookbus_early_stopping import EarlyStoppingHook
    from hookbus_eval import DistEvalHook
    from hookbus_logger import JsonlHook, LoggerHook
    from hookbus_profiler import ProfilerHook
    from hookbus_sync import SyncMetricsHook
    from hookbus_system_monitor import SystemMonitorHook
    from hookbus_tensorboard import TensorBoardHook
    from hookbus_timer import IterTimerHook

    started = []

    class Nothing(Writer):
        def write_scalar(self, name, value, step): ...
        def write_image(self, name, image, step, caption=None): ...
        def write_config(self, config): ...
        def resume(self, since, step):
            return frozenset()

    class TrackerHook(WriterHook):
        def writer_factory(self, run):
            started.append(run.ranks.rank)
            return Nothing

    class Losses(Hook):
        def __init__(self):
            super().__init__()
            self.found = []

        def after_train_iter(self, outputs):
            self.found.append(float(outputs["loss"]))

    losses = Losses()
    trainer = toys.trainer(
        epochs=6, val_loader=toys.loader(4, 13), metrics=["accuracy"], work_dir="run", default_hooks=True,
        hooks=[
            LoggerHook(interval=2), JsonlHook(interval=2), TensorBoardHook(interval=2), TrackerHook(), losses,
            DistEvalHook(metric="loss"), EarlyStoppingHook(monitor="val_loss", patience=2, min_delta=100.0),
            SyncMetricsHook(), SystemMonitorHook(interval=2), IterTimerHook(interval=2),
            ProfilerHook(schedule={"wait": 1, "warmup": 1, "active": 1}),
        ],
    )
    run = trainer.fit()
    answer({
        "outcome": run.outcome, "epochs": run.epochs_done, "reasons": run.stop_reasons, "losses": losses.found,
        "best": {n: [b.value, b.epoch, str(b.path), b.path.exists()] for n, b in run.best.items()},
        "results": dict(run.metrics.results), "started": started,
    })
"""


@pytest.fixture(scope="module")
def done(launch_once: Launch) -> Launched:
    return launch_once(TRAINING)


@pytest.fixture(scope="module")
def work_dir(done: Launched) -> Path:
    return done.logs.parent.parent / "run"


@pytest.fixture(scope="module")
def rows(work_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (work_dir / "logs" / "metrics.jsonl").read_text().splitlines()]


def test_all_processes_stop_at_the_same_epoch_for_the_same_reason(done: Launched) -> None:
    first, second = done.answers[0], done.answers[1]

    assert first["outcome"] == second["outcome"] == "stopped"
    assert first["epochs"] == second["epochs"] == 3
    assert first["reasons"] == second["reasons"]
    assert first["results"] == second["results"]


def test_all_know_the_same_best_file_and_it_is_there(done: Launched, work_dir: Path) -> None:
    best = done.answers[0]["best"]

    assert best == done.answers[1]["best"]
    assert {name: exists for name, (_, _, _, exists) in best.items()} == {"val/loss": True, "val/accuracy": True}
    assert {name: (value, epoch) for name, (value, epoch, _, _) in best.items()} == {
        name: (value, 3) for name, value in done.answers[0]["results"].items()
    }


def test_rows_stand_once_with_results_of_all_and_means_over_the_processes(
    done: Launched, rows: list[dict[str, Any]]
) -> None:
    places = [(row["kind"], row["step"], *sorted(row["values"])) for row in rows]
    assert len(set(places)) == len(places)
    assert [row["step"] for row in rows if row["kind"] == "val"] == [4, 8, 12]
    assert [row for row in rows if row["kind"] == "val"][-1]["values"] == done.answers[0]["results"]

    means = [sum(pair) / 2 for pair in zip(done.answers[0]["losses"], done.answers[1]["losses"], strict=True)]
    recorded = {row["step"]: row["values"]["train/loss"] for row in rows if row["kind"] == "train"}
    assert recorded == {step: pytest.approx(sum(means[step - 2 : step]) / 2, rel=1e-12) for step in range(2, 13, 2)}


def test_samples_per_second_are_those_of_all_processes(rows: list[dict[str, Any]]) -> None:
    rates = [row["values"] for row in rows if "throughput/samples_per_second" in row["values"]]

    for each in rates:  # two processes with 8 samples in each iteration
        assert each["throughput/samples_per_second"] == pytest.approx(16 * each["throughput/iterations_per_second"])


def test_a_tracker_is_started_by_the_main_process_alone(done: Launched, work_dir: Path) -> None:
    assert [done.answers[rank]["started"] for rank in (0, 1)] == [[0], []]
    assert len(list(work_dir.rglob("events.out.tfevents.*"))) == 1


def test_the_board_shows_what_the_rows_say(work_dir: Path, rows: list[dict[str, Any]]) -> None:
    (file,) = work_dir.rglob("events.out.tfevents.*")
    board = EventAccumulator(str(file.parent)).Reload()

    for kind, name in (("train", "train/loss"), ("val", "val/accuracy")):
        shown = {event.step: event.value for event in board.Scalars(name)}
        written = {row["step"]: row["values"][name] for row in rows if row["kind"] == kind}
        assert shown == {step: pytest.approx(value, rel=1e-6) for step, value in written.items()}


def test_each_process_leaves_a_trace_of_its_own(work_dir: Path) -> None:
    traces = sorted(path.name for path in work_dir.rglob("*.pt.trace.json.gz"))

    assert traces == [f"rank{rank}-cycle1-iteration3.pt.trace.json.gz" for rank in (0, 1)]


def test_only_the_main_process_prints(done: Launched) -> None:
    assert "epoch 3/6" in done.output(0)
    assert [line for line in done.output(1).splitlines() if not line.startswith(OF_TORCH)] == []


def test_of_a_loop_whose_scores_differ_the_main_process_decides(launch: Launch) -> None:
    script = """
        from hookbus import HookBus
        from hookbus_early_stopping import EarlyStoppingHook
        from torch import nn

        scores = iter([[1.0, 1.0, 1.0, 1.0], [4.0, 3.0, 2.0, 1.0]][RANK])
        bus = HookBus([EarlyStoppingHook(monitor="loss", mode="min", patience=2, restore_best_weights=False)])
        with bus.run(model=nn.Linear(1, 1), epochs=4, validate=lambda: {"loss": next(scores)}) as run:
            for _ in run.epochs():
                bus.emit("before_train_epoch")
                bus.emit("before_train_iter")
                bus.emit("after_train_iter")
                bus.emit("after_train_epoch")
                run.request_validation()
        answer([run.epochs_done, run.outcome])
    """
    assert launch(script).answers == {0: [3, "stopped"], 1: [3, "stopped"]}
