"""Compatibility with MMEngine: its 22 points, its order, the call tree of the nested order, and ported hooks.

The expected values are recorded from a resumed training of one epoch in MMEngine, and from the two orders in its
documentation.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hookbus import HOOKS, BaseHook, Hook, Run, Trainer, build_hook
from hookbus._run.requests import Request
from hookbus.checkpoint.state import write_checkpoint
from hookbus.errors import LoopError
from hookbus.lifecycle import POINTS
from tests import toys

MMENGINE = {
    "before_run", "after_run",
    "before_train", "after_train", "before_train_epoch", "after_train_epoch", "before_train_iter", "after_train_iter",
    "before_val", "after_val", "before_val_epoch", "after_val_epoch", "before_val_iter", "after_val_iter",
    "before_test", "after_test", "before_test_epoch", "after_test_epoch", "before_test_iter", "after_test_iter",
    "before_save_checkpoint", "after_load_checkpoint",
}  # fmt: skip

TRAINING = [
    "before_run",
    "after_load_checkpoint",
    "before_train",
    "before_train_epoch",
    *["before_train_iter", "after_train_iter"] * 2,
    "after_train_epoch",
    "before_val",
    "before_val_epoch",
    "before_val_iter",
    "after_val_iter",
    "after_val_epoch",
    "after_val",
    "before_save_checkpoint",  # after the validation here, to contain the results of its epoch
    "after_train",
    "after_run",
]
VALIDATION = [
    "before_run",
    "before_val",
    "before_val_epoch",
    "before_val_iter",
    "after_val_iter",
    "after_val_epoch",
    "after_val",
    "after_run",
]
TEST = [point.replace("val", "test") for point in VALIDATION]

Calls = list[tuple[str, str]]


def listener(name: str, priority: int, calls: Calls) -> Hook:
    """Create a hook that listens at all points of MMEngine and records each call."""

    def make_recorder(point: str) -> Any:
        def record(self: Hook) -> None:
            calls.append((point, name))

        return record

    kind = type(f"{name.title()}Hook", (Hook,), {point: make_recorder(point) for point in sorted(MMENGINE)})
    hook: Hook = kind(name=name, priority=priority)
    return hook


class SaveLast(toys.Saver):
    """Write a checkpoint at the end of each epoch to a fixed file."""

    def __init__(self, path: Path) -> None:
        super().__init__("after_epoch")
        self.path = path

    def plan(self, run: Run, requests: list[Request]) -> Path:
        return self.path

    def write(self, run: Run, checkpoint: dict[str, Any]) -> bool:
        write_checkpoint(self.path, checkpoint, generation=1)
        return False


def trainer(calls: Calls, order: str, path: Path, **options: Any) -> Trainer:
    """Create a trainer with two training batches and hooks of priority 90, 10, 50 and 50, in this order."""
    hooks = [
        listener(*hook_settings, calls) for hook_settings in (("low", 90), ("high", 10), ("first", 50), ("second", 50))
    ]
    loaders = {"train_loader": toys.pairs(2), "val_loader": toys.pairs(1), "test_loader": toys.pairs(1)}
    return toys.trainer(*hooks, SaveLast(path), order=order, **loaders, **options)


@pytest.fixture
def resumed(tmp_path: Path) -> Path:
    """Return a checkpoint of the first epoch."""
    path = tmp_path / "first.pth"
    trainer([], "nested", path, epochs=1).fit()
    return path


def get_points(calls: Calls) -> list[str]:
    return [point for point, name in calls if name == "high"]


def test_all_22_points_of_mmengine_exist() -> None:
    assert len(MMENGINE) == 22
    assert set(POINTS) >= MMENGINE


class TestAscendingOrder:
    ORDER = ("high", "first", "second", "low")

    def test_resumed_training_emits_the_same_points(self, resumed: Path, tmp_path: Path) -> None:
        calls: Calls = []
        trainer(calls, "ascending", tmp_path / "second.pth", epochs=2, resume=resumed).fit()

        assert get_points(calls) == TRAINING

    def test_points_run_by_priority_and_registration(self, resumed: Path, tmp_path: Path) -> None:
        calls: Calls = []
        trainer(calls, "ascending", tmp_path / "second.pth", epochs=2, resume=resumed).fit()

        assert calls == [(point, name) for point in TRAINING for name in self.ORDER]

    @pytest.mark.parametrize(("mode", "points"), [("validate", VALIDATION), ("test", TEST)])
    def test_validation_and_test_run_by_priority_and_registration(
        self, mode: str, points: list[str], tmp_path: Path
    ) -> None:
        calls: Calls = []
        getattr(trainer(calls, "ascending", tmp_path / "none.pth"), mode)()

        assert calls == [(point, name) for point in points for name in self.ORDER]


class TestNestedOrder:
    def test_after_points_run_in_reverse_order(self, resumed: Path, tmp_path: Path) -> None:
        calls: Calls = []
        trainer(calls, "nested", tmp_path / "second.pth", epochs=2, resume=resumed).fit()
        inwards = ("high", "first", "second", "low")

        expected = [
            (point, name)
            for point in TRAINING
            for name in (reversed(inwards) if point.startswith("after_") else inwards)
        ]
        assert calls == expected

    def test_call_tree_of_an_epoch_contains_the_validation(self) -> None:
        tree = [
            "before_run",
            *[
                "before_epoch",
                "before_train_epoch",
                *["before_train_iter", "after_train_iter"] * 3,
                "after_train_epoch",
                "before_val_epoch",
                "before_val_iter",
                "after_val_iter",
                "after_val_epoch",
                "after_epoch",
            ]
            * 2,
            "after_run",
        ]
        fired: list[str] = []

        def make_recorder(point: str) -> Any:
            def record(self: Hook) -> None:
                fired.append(point)

            return record

        hook: Hook = type("TreeHook", (BaseHook,), {point: make_recorder(point) for point in set(tree)})()
        toys.trainer(hook, val_loader=toys.pairs(1), epochs=2).fit()

        assert fired == tree
        assert hook.get_triggered_stages() == [point for point in POINTS if point in set(tree)]


# -- ported hooks ----------------------------------------------------------------------------------


@HOOKS.register_module()
class ChecksLoss(Hook):
    """Check every `interval` iterations that the loss is finite, with the names and helpers of MMDetection."""

    def __init__(self, interval: int = 50) -> None:
        self.interval = interval

    def after_train_iter(self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        if self.every_n_train_iters(runner, self.interval) and not torch.isfinite(outputs["loss"]):
            raise LoopError(f"the loss is not finite at iteration {runner.iters_done}")


class TestPortedHooks:
    def test_hook_with_services_as_in_the_guide(self, caplog: pytest.LogCaptureFixture) -> None:
        class LogsStart(BaseHook):
            """Log the start of training, and record a value and the metrics at the end of each epoch."""

            def __init__(self, config: dict[str, Any] | None = None) -> None:
                super().__init__(config)
                self.frequency_seen = self.config.frequency

            def before_training(self, model: nn.Module) -> None:
                logger = self.get_service("logger")
                if logger:
                    logger.info("training of %s begins", type(model).__name__)

            def after_epoch(self, epoch: int, model: nn.Module, metrics: dict[str, float]) -> None:
                visualizer = self.get_service("visualizer")
                if visualizer:
                    visualizer.add_scalar("custom/metric", 0.5, epoch)
                if self.get_service("unknown_service"):
                    raise AssertionError
                seen.append((epoch, sorted(metrics)))

        class Writes(Hook):
            def log_scalars(self, values: dict[str, float], step: int) -> None:
                written.append((dict(values), step))

        seen: list[Any] = []
        written: list[Any] = []
        hook = LogsStart({"frequency": 1})
        training = toys.trainer(Writes(), epochs=2)
        training.register_hook(hook)
        with caplog.at_level("INFO", "hookbus"):
            training.train()

        assert hook.frequency_seen == 1
        assert "training of Sequential begins" in caplog.messages
        assert seen == [(0, ["train/loss"]), (1, ["train/loss"])]
        assert written == [({"custom/metric": 0.5}, 0), ({"custom/metric": 0.5}, 1)]

    @pytest.mark.slow
    def test_hook_with_a_registered_tracker(self, tmp_path: Path) -> None:
        import mlflow

        class Records(BaseHook):
            """Record the metrics of each epoch in a separate MLflow run."""

            def after_epoch(self, epoch: int, model: nn.Module, metrics: dict[str, float]) -> None:
                tracker = self.get_service("mlflow")
                if tracker:
                    with tracker.start_run():
                        for name, value in metrics.items():
                            tracker.log_metric(name, value, step=epoch)

        before = mlflow.get_tracking_uri()
        mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'mlflow.db'}")
        training = toys.trainer(Records(), epochs=2)
        training.register_service("mlflow", mlflow)
        training.fit()
        client = mlflow.MlflowClient()
        runs = client.search_runs(["0"], order_by=["start_time"])
        mlflow.set_tracking_uri(before)

        histories = [client.get_metric_history(run.info.run_id, "train/loss") for run in runs]
        assert [[(metric.key, metric.step) for metric in metrics] for metrics in histories] == [
            [("train/loss", 0)],
            [("train/loss", 1)],
        ]

    def test_should_trigger_receives_the_step(self) -> None:
        class EveryThirdStep(BaseHook):
            """Trigger at the first two steps, then at every third."""

            def should_trigger(self, step: int) -> bool:
                return step < 2 or step % 3 == 0

            def after_step(self, step: int) -> None:
                steps.append(step - 1)  # `step` counts completed optimizer steps

        steps: list[int] = []
        toys.trainer(EveryThirdStep(), epochs=3).fit()

        assert steps == [0, 1, 3, 6]

    def test_hook_that_writes_scalars_as_in_pointrix(self) -> None:
        class Smooths(Hook):
            """Write the loss and the learning rate of a named group, and smooth the loss."""

            def __init__(self) -> None:
                super().__init__()
                self.smoothed = 0.0

            def after_train_iter(self, run: Run, outputs: dict[str, torch.Tensor]) -> None:
                assert run.optimizer is not None
                rate = next(group["lr"] for group in run.optimizer.param_groups if group["name"] == "all")
                self.smoothed = 0.4 * outputs["loss"].item() + 0.6 * self.smoothed
                for key, value in {"loss": outputs["loss"], "lr": rate}.items():
                    run.require("writer").write_scalar(f"points/{key}", value, run.steps_done)

        class Writes(Hook):
            def log_scalars(self, values: dict[str, float], step: int) -> None:
                written.append((step, *values))

        model, written = nn.Linear(4, 2), []
        hook = Smooths()
        optimizer = torch.optim.SGD([{"params": list(model.parameters()), "name": "all"}], lr=0.1)

        def step(model: nn.Module, batch: Any) -> torch.Tensor:
            return (model(batch[0]) * 0).sum() + 1.0

        toys.trainer(hook, Writes(), model=model, optimizer=optimizer, loss_fn=None, step_fn=step, epochs=1).fit()

        assert written == [(i, f"points/{key}") for i in (1, 2, 3) for key in ("loss", "lr")]
        assert hook.smoothed == pytest.approx(0.4 * (1 + 0.6 + 0.36))

    @pytest.mark.parametrize(("interval", "iteration"), [(1, 2), (2, 2), (3, 3)])
    def test_hook_that_checks_the_loss_as_in_mmdetection(self, interval: int, iteration: int) -> None:
        losses = iter([1.0, math.nan, math.nan])

        def step(model: nn.Module, batch: Any) -> torch.Tensor:
            return (model(batch[0]) * 0).sum() + next(losses)

        hook = build_hook({"type": "ChecksLoss", "interval": interval})
        with pytest.raises(LoopError, match=f"not finite at iteration {iteration}"):
            toys.trainer(hook, loss_fn=None, step_fn=step, epochs=1).fit()
