"""Tests of `bus.run(mode="val")` and `bus.run(mode="test")`: custom loops that only evaluate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hookbus import Hook, HookBus, Run
from hookbus.errors import CheckpointError, ConfigError, LoopError, PointError, RequestError
from hookbus.testing import RecordingBus
from hookbus_checkpoint import CheckpointHook
from hookbus_early_stopping import EarlyStoppingHook
from hookbus_ema import EMAHook
from hookbus_logger import JsonlHook, read_jsonl
from hookbus_schedule import ParamSchedulerHook
from tests import toys


class Counter(Hook):
    """Count iterations; the count is its state."""

    count = 0

    def after_train_iter(self) -> None:
        self.count += 1

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


def build_hooks() -> list[Hook]:
    return [
        Counter(),
        CheckpointHook(interval=1, best_metric="val/loss"),
        EarlyStoppingHook(monitor="val/loss", patience=1),
        ParamSchedulerHook(schedulers=[{"type": "ExponentialLR", "gamma": 0.5}]),
        EMAHook(momentum=0.5),
        JsonlHook(interval=1),
    ]


def train(work_dir: Path) -> tuple[HookBus, nn.Module]:
    """Train for two epochs of two iterations."""
    model = toys.net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    bus = HookBus(build_hooks())
    options: dict[str, Any] = {"validate": lambda: {"loss": 1.0}, "epochs": 2, "work_dir": work_dir, "seed": 0}
    with bus.run(model=model, optimizer=optimizer, **options) as run:
        for _ in toys.run_custom_loop(bus, run, toys.pairs(2), model, optimizer):
            run.request_validation()
    return bus, model


def read_files(work_dir: Path) -> dict[str, bytes]:
    """Return the files of a run except its log."""
    files = [path for path in sorted(work_dir.rglob("*")) if path.is_file() and path.name != "metrics.jsonl"]
    return {str(path.relative_to(work_dir)): path.read_bytes() for path in files}


@pytest.mark.parametrize("mode", ["val", "test"])
def test_run_emits_the_events_of_its_evaluation_only(mode: Any) -> None:
    bus = RecordingBus()
    with bus.run(mode=mode, validate=lambda: {"loss": 0.5}) as run:
        results = run.validate() if mode == "val" else run.test()

    points = ["before_run", "before_val", "before_val_epoch", "after_val_epoch", "after_val", "after_run", "cleanup"]
    assert bus.emitted_points == [point.replace("val", mode) for point in points]
    assert bus.get_arguments("before_run")[0]["mode"] == mode
    assert dict(results) == {f"{mode}/loss": 0.5}
    assert (run.outcome, run.iters_done, run.epochs_done, run.steps_done) == ("finished", 0, 0, 0)


@pytest.mark.parametrize("mode", ["val", "test"])
@pytest.mark.parametrize("emits", [False, True])
def test_resumed_evaluation_changes_no_file_of_the_training(mode: Any, emits: bool, tmp_path: Path) -> None:
    train(tmp_path / "run")
    before, rows = read_files(tmp_path / "run"), len(list(read_jsonl(tmp_path / "run/logs/metrics.jsonl")))
    model, hooks = toys.net(), build_hooks()
    bus, seen = HookBus(hooks), []

    def measure() -> dict[str, float]:
        seen.append(model[0].weight.detach().clone())
        return {"loss": 0.25}

    options: dict[str, Any] = {"work_dir": tmp_path / "run", "resume": "auto", "validate": measure}
    with bus.run(mode=mode, model=model, **options) as run:
        if emits:
            bus.emit(f"before_{mode}")
            bus.emit(f"after_{mode}", metrics=measure())
        else:
            _ = run.validate() if mode == "val" else run.test()
        run.request_stop("done")
    assert read_files(tmp_path / "run") == before
    assert (run.steps_done, run.iters_done, run.epochs_done, hooks[0].count) == (4, 4, 2, 4)
    checkpoint = torch.load(tmp_path / "run/checkpoints/last.pth", weights_only=True)
    assert torch.equal(seen[0], checkpoint["ema_state_dict"]["0.weight"])
    assert torch.equal(model[0].weight, checkpoint["state_dict"]["0.weight"])
    new = list(read_jsonl(tmp_path / "run/logs/metrics.jsonl"))[rows:]
    assert [(row["kind"], row["mode"], row["step"], row["values"]) for row in new] == [
        (mode, mode, 4, {f"{mode}/loss": 0.25})
    ]


def test_evaluation_after_a_training_of_the_bus_has_its_state(tmp_path: Path) -> None:
    bus, model = train(tmp_path / "run")
    with bus.run(mode="val", model=model, work_dir=tmp_path / "run", validate=lambda: {"loss": 0.125}) as run:
        run.validate()
    assert (run.steps_done, dict(run.metrics.results)) == (4, {"val/loss": 0.125})
    assert run.best["val/loss"].value == 1.0


def test_evaluation_without_a_checkpoint_to_resume_from_is_refused(tmp_path: Path) -> None:
    bus = HookBus([CheckpointHook()])
    with (
        pytest.raises(CheckpointError, match='^resume: no checkpoint to evaluate, got "auto" in .*run/checkpoints. Tr'),
        bus.run(mode="val", model=toys.net(), work_dir=tmp_path / "run", resume="auto"),
    ):
        pass


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "vall"}, "mode: expected 'train', 'val' or 'test', got 'vall'. Did you mean 'val'?"),
        ({"mode": "val", "epochs": 3}, "epochs: has no effect in a run of mode 'val', got 3. Remove it."),
        ({"mode": "test", "iterations": 0}, "iterations: has no effect in a run of mode 'test', got 0. Remove it."),
        ({"mode": "val", "overwrite": True}, "overwrite: has no effect in a run of mode 'val', got True. Remove it."),
        ({"mode": "val", "train_loader": []}, "train_loader: has no effect in a run of mode 'val', got list. Remove"),
        ({"mode": "val", "counts_steps": True}, "counts_steps: has no effect in a run of mode 'val', got True. Rem"),
    ],
)
def test_argument_of_training_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as raised, HookBus().run(**options):
        pass
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize("point", ["before_train", "before_epoch", "before_train_epoch", "before_train_iter"])
def test_event_of_training_is_refused(point: str) -> None:
    bus = RecordingBus()
    with (
        pytest.raises(PointError, match=r"but the run only evaluates, got mode 'val'. Iterate over"),
        bus.run(mode="val"),
    ):
        bus.emit(point)
    assert point not in bus.emitted_points


def test_operation_of_training_is_refused() -> None:
    def request_save(run: Run) -> None:
        run.request_save("now")

    with HookBus().run(mode="test") as run:
        for operation in (lambda: run.epochs(), lambda: run.batches([1])):
            with pytest.raises(LoopError, match="the run only evaluates, got mode 'test'"):
                operation()
        with pytest.raises(
            RequestError, match="^loop requested a checkpoint in a run of mode 'test', which writes non"
        ):
            request_save(run)
