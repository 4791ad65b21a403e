"""Hooks of MMEngine in the Trainer of hookbus."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("mmengine", reason="MMEngine is not installed: run `make bridges HOST=mmengine`")

from mmengine import hooks as stock
from mmengine.hooks import Hook as ForeignHook
from mmengine.optim import MultiStepLR

from hookbus import HookBus, Trainer
from hookbus.errors import ConfigError, HookError
from hookbus.testing import HostTask
from hookbus_mmengine import MMEngineHook
from hookbus_mmengine.runner_use import find_problem

WORKING = {
    "EarlyStoppingHook",
    "EmptyCacheHook",
    "IterTimerHook",
    "NPUProfilerHook",
    "ParamSchedulerHook",
    "ProfilerHook",
    "SyncBuffersHook",
}
STAGES = [stage for stage in ForeignHook.stages if "test" not in stage and "checkpoint" not in stage]


def build_trainer(task: HostTask, directory: Path, *hooks: Any, **arguments: Any) -> Trainer:
    model = task.model()
    return Trainer(
        model=model,
        optimizer=task.optimizer(model),
        train_loader=task.train_loader(),
        val_loader=task.val_loader(),
        loss_fn=task.loss,
        epochs=task.epochs,
        work_dir=directory,
        default_hooks=False,
        hooks=[*hooks],
        **arguments,
    )


class Recorder(ForeignHook):  # type: ignore[misc]
    """Hook that records its calls with the position of the Runner."""

    priority = "LOW"

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def record(self, stage: str, runner: Any) -> None:
        self.calls.append((stage, runner.epoch, runner.iter))


for _stage in ForeignHook.stages:
    setattr(Recorder, _stage, lambda self, runner, _stage=_stage, **arguments: self.record(_stage, runner))


def test_points_and_positions_are_those_of_mmengine(tmp_path: Path) -> None:
    from .adapter import build_runner

    in_runner, in_trainer = Recorder(), Recorder()
    build_runner(HostTask(), tmp_path / "runner", custom_hooks=[in_runner]).train()
    build_trainer(HostTask(), tmp_path / "trainer", MMEngineHook(in_trainer)).fit()
    expected = [call for call in in_runner.calls if "checkpoint" not in call[0]]
    assert in_trainer.calls == expected
    assert {stage for stage, *_ in expected} == set(STAGES)


def test_hook_receives_batch_outputs_and_results(tmp_path: Path) -> None:
    received: dict[str, Any] = {}

    class Receiver(ForeignHook):  # type: ignore[misc]
        def after_train_iter(self, runner: Any, batch_idx: int, data_batch: Any, outputs: Any) -> None:
            received[f"iteration {batch_idx}"] = (data_batch, outputs["loss"])

        def after_val_epoch(self, runner: Any, metrics: dict[str, float]) -> None:
            received["metrics"] = metrics

    task = HostTask(epochs=1)
    trainer = build_trainer(task, tmp_path, MMEngineHook(Receiver()))
    trainer.fit()
    assert torch.equal(received["iteration 5"][0][0], task.inputs[5])
    assert torch.equal(received["iteration 5"][1], task.losses[5])
    assert received["metrics"] == {"loss": trainer.bus.current.metrics.results["val/loss"]}


def test_stock_hooks_that_work_are_the_documented_ones() -> None:
    classes = {name: getattr(stock, name) for name in stock.__all__ if name != "Hook"}
    assert {name for name, cls in classes.items() if not find_problem(cls)} == WORKING


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("CheckpointHook", "needs runner.save_checkpoint, which .* CheckpointHook of hookbus-checkpoint"),
        ("EMAHook", "exchanges the weights in checkpoints.* EMAHook of hookbus-ema"),
        ("DistSamplerSeedHook", "has no effect: the order of the data depends on the seed and the epoch. Remove it"),
        ("LoggerHook", r"needs .* runner.log_processor, runner.timestamp, runner.visualizer, which .* hookbus-logger"),
        ("RuntimeInfoHook", "needs runner.cfg, runner.experiment_name, which .* RuntimeInfoHook of hookbus-runtime"),
    ],
)
def test_other_stock_hooks_are_refused_with_the_reason(name: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=f"MMEngineHook: {name} {problem}"):
        MMEngineHook({"type": name})


def test_early_stopping_stops_the_training(tmp_path: Path) -> None:
    hook = stock.EarlyStoppingHook(monitor="loss", patience=2, min_delta=10)
    trainer = build_trainer(HostTask(epochs=9), tmp_path, MMEngineHook(hook))
    run = trainer.fit()
    # The first result is the best one; the next two are no improvement by 10.
    assert (run.outcome, run.epochs_done) == ("stopped", 3)
    assert run.stop_reasons == ["EarlyStoppingHook: runner.train_loop.stop_training = True"]


def test_scheduler_is_resumed(tmp_path: Path) -> None:
    from hookbus_checkpoint import CheckpointHook

    def rates(epochs: int, name: str, **arguments: Any) -> list[float]:
        trainer = build_trainer(HostTask(epochs=epochs), tmp_path / name, **arguments)
        schedulers = [MultiStepLR(trainer.optimizer, milestones=[1, 3], gamma=0.5)]
        trainer.bus.register(MMEngineHook(stock.ParamSchedulerHook(), param_schedulers=schedulers))
        trainer.bus.register(CheckpointHook(best_metric="loss"))
        used: list[float] = []
        trainer.bus.on("before_train_epoch")(lambda run: used.append(run.optimizer.param_groups[0]["lr"]))
        trainer.fit()
        return used

    assert rates(4, "whole") == [0.1, 0.05, 0.05, 0.025]
    assert rates(2, "parts") == [0.1, 0.05]
    assert rates(4, "parts", resume="auto") == [0.05, 0.025]


def test_schedulers_are_required_and_for_no_other_hook() -> None:
    expected = "param_schedulers should be set for ParamSchedulerHook, and for no other hook, got 0 schedulers"
    with pytest.raises(ConfigError, match=expected):
        MMEngineHook(stock.ParamSchedulerHook())
    scheduler = MultiStepLR(torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0), milestones=[1])
    with pytest.raises(ConfigError, match="got 1 schedulers for IterTimerHook"):
        MMEngineHook(stock.IterTimerHook(), param_schedulers=[scheduler])


def test_schedulers_are_built() -> None:
    expected = "param_schedulers should be a list of parameter schedulers of mmengine.optim, got"
    for schedulers in ([{"type": "MultiStepLR", "milestones": [1]}], object()):
        with pytest.raises(ConfigError, match=expected):
            MMEngineHook({"type": "ParamSchedulerHook"}, param_schedulers=schedulers)


@pytest.mark.parametrize(
    ("hook", "expected"),
    [
        (stock.EarlyStoppingHook, "hook should be a hook of MMEngine or its settings, got <class .*Pass an instance"),
        ("EarlyStoppingHook", "hook should be a hook of MMEngine or its settings, got 'EarlyStoppingHook'"),
        ({"type": "EmptyCacheHok"}, r"cannot build the hook, got {'type': 'EmptyCacheHok'}\. EmptyCacheHok is not in"),
        (
            {"type": "EarlyStoppingHook", "monitr": "loss"},
            r"cannot build the hook.*unexpected keyword argument 'monitr'",
        ),
    ],
)
def test_invalid_hook_is_refused(hook: Any, expected: str) -> None:
    with pytest.raises(ConfigError, match=f"^MMEngineHook: .*{expected}"):
        MMEngineHook(hook)


def test_times_of_iter_timer_are_logged(tmp_path: Path) -> None:
    trainer = build_trainer(HostTask(epochs=1), tmp_path, MMEngineHook(stock.IterTimerHook()))
    trainer.fit()
    assert {"train/time", "train/data_time"} <= trainer.bus.current.all_metrics().keys()


def test_profiler_writes_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    hook = stock.ProfilerHook(by_epoch=False, profile_times=2, json_trace_path=str(path))
    build_trainer(HostTask(epochs=1), tmp_path / "run", MMEngineHook(hook)).fit()
    assert path.stat().st_size > 0


def test_priority_and_name_are_those_of_the_hook() -> None:
    hook = MMEngineHook(Recorder())
    named = MMEngineHook({"type": "IterTimerHook"}, name="timer", priority=5)
    assert (hook.name, hook.config.priority) == ("Recorder", 70)
    assert (named.name, named.config.priority) == ("timer", 5)


def test_part_that_the_source_does_not_show_is_an_error_at_the_point(tmp_path: Path) -> None:
    class Indirect(ForeignHook):  # type: ignore[misc]
        def before_train(self, runner: Any) -> None:
            getattr(runner, "visualizer")  # noqa: B009

    with pytest.raises(HookError, match=r"before_train: the hook uses runner\.visualizer, which a run of hookbus"):
        build_trainer(HostTask(epochs=1), tmp_path, MMEngineHook(Indirect())).fit()


def test_copy_calls_its_own_hook() -> None:
    hook = MMEngineHook(Recorder())
    clone = copy.deepcopy(hook)
    HookBus([clone]).emit("before_train")
    assert (len(clone.hook.calls), hook.hook.calls) == (1, [])
