"""Rows of handlers: each in a training with the handler of Ignite, and in one with the hook that replaces it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("ignite", reason="ignite is not installed: run `make bridges HOST=ignite`")

from ignite.engine import Engine, Events, create_supervised_trainer
from ignite.handlers import (
    BasicTimeProfiler,
    Checkpoint,
    DiskSaver,
    EarlyStopping,
    EMAHandler,
    FastaiLRFinder,
    LRScheduler,
    TerminateOnNan,
    TimeLimit,
    create_lr_scheduler_with_warmup,
)
from torch.optim import lr_scheduler

from hookbus import HookBus, Trainer
from hookbus.checkpoint import read_checkpoint
from hookbus.testing import RecordingBus
from hookbus_checkpoint import CheckpointHook
from hookbus_early_stopping import EarlyStoppingHook
from hookbus_ema import EMAHook
from hookbus_eval import EvalHook
from hookbus_finders import LRFinderHook
from hookbus_guards import CheckInvalidLossHook
from hookbus_runtime import TimeLimitHook
from hookbus_schedule import ParamSchedulerHook
from hookbus_timer import IterTimerHook, TimeTrackingHook

from .migration import covers
from .toys import Toy, pairs

WEIGHTS = [-8.75, -22.09375, -36.01171875]
"""Weights of `MomentumToy` after 1, 2 and 3 epochs: the velocities are 1, 2.5, 5.25, 3.625, 3.8125, 5.90625, ..."""


class MomentumToy(Toy):
    """Toy with batches 1, 2 and 4, whose optimizer has a state."""

    def __init__(self) -> None:
        super().__init__([1.0, 2.0, 4.0])
        self.optimizer.param_groups[0]["momentum"] = 0.5


def report_losses(toy: Toy, losses: Sequence[float]) -> None:
    """Let the toy validate after each epoch, with these losses."""

    @toy.trainer.on(Events.EPOCH_COMPLETED)
    def evaluate(engine: Engine) -> None:
        toy.evaluator.run(pairs([4.0]))

    @toy.evaluator.on(Events.EPOCH_COMPLETED)
    def report(engine: Engine) -> None:
        engine.state.metrics = {"loss": losses[toy.trainer.state.epoch - 1]}


@covers("`Checkpoint`", "`checkpoint`")
def test_checkpoint(tmp_path: Path) -> None:
    toy = MomentumToy()
    handler = Checkpoint({"model": toy.model}, DiskSaver(tmp_path / "ignite"), n_saved=None)
    toy.trainer.add_event_handler(Events.EPOCH_COMPLETED, handler)
    toy.attach(HookBus([CheckpointHook(save_best=False)]), checkpoints="hookbus", work_dir=tmp_path)
    toy.trainer.run(toy.data, max_epochs=3)
    native = [torch.load(tmp_path / f"ignite/model_{i}.pt", weights_only=True) for i in (3, 6, 9)]
    saved = [read_checkpoint(tmp_path / f"checkpoints/epoch_{i}.pth")["state_dict"] for i in (1, 2, 3)]
    assert [float(state["weight"]) for state in native] == WEIGHTS
    assert saved == native


@covers("`n_saved` with a score function", "`checkpoint` with `save_top_k`")
def test_best_checkpoints(tmp_path: Path) -> None:
    losses, toy = [3.0, 1.0, 2.0, 4.0], MomentumToy()

    report_losses(toy, losses)
    saver, score = DiskSaver(tmp_path / "ignite"), lambda engine: -engine.state.metrics["loss"]
    handler = Checkpoint({"model": toy.model}, saver, n_saved=2, score_function=score)
    toy.evaluator.add_event_handler(Events.COMPLETED, handler)
    bus = HookBus([CheckpointHook(save_best={"loss": "less"}, save_top_k=2, interval=None, save_last=False)])
    toy.attach(bus, checkpoints="hookbus", work_dir=tmp_path, evaluators={"val": toy.evaluator})
    toy.trainer.run(toy.data, max_epochs=4)
    native = {float(torch.load(path, weights_only=True)["weight"]) for path in (tmp_path / "ignite").iterdir()}
    files = {f"best_loss_epoch_{epoch}.pth" for epoch in (2, 3)}
    assert {path.name for path in (tmp_path / "checkpoints").glob("best_loss_*.pth")} == files
    ours = {float(read_checkpoint(tmp_path / "checkpoints" / name)["state_dict"]["weight"]) for name in files}
    assert native == ours == set(WEIGHTS[1:])


@covers("`Checkpoint.load_objects`", "`checkpoint`, with `resume: auto`")
def test_restored_checkpoint(tmp_path: Path) -> None:
    def train_with_handler(epochs: int, file: str | None) -> Toy:
        toy = MomentumToy()
        parts = {"trainer": toy.trainer, "model": toy.model, "optimizer": toy.optimizer}
        if file is not None:
            Checkpoint.load_objects(parts, torch.load(tmp_path / "ignite" / file, weights_only=True))
        saver = DiskSaver(tmp_path / "ignite", require_empty=False)
        toy.trainer.add_event_handler(Events.EPOCH_COMPLETED, Checkpoint(parts, saver))
        toy.trainer.run(toy.data, max_epochs=epochs)
        return toy

    def train_with_hook(epochs: int, resume: str) -> Toy:
        toy, bus = MomentumToy(), HookBus([CheckpointHook(save_best=False)])
        toy.attach(bus, checkpoints="hookbus", work_dir=tmp_path / "hookbus", resume=resume)
        toy.trainer.run(toy.data, max_epochs=epochs)
        return toy

    train_with_handler(1, None)
    native = train_with_handler(3, "checkpoint_3.pt")
    train_with_hook(1, "never")
    hooked = train_with_hook(3, "auto")
    assert (native.weight, native.trainer.state.iteration) == (WEIGHTS[2], 9)
    assert (hooked.weight, hooked.trainer.state.iteration) == (WEIGHTS[2], 9)


@covers(
    "`EarlyStopping`",
    "`early_stopping` with `restore_best_weights: false`, and with a `min_delta` `cumulative_delta: false` unless "
    "`cumulative=True`",
)
@pytest.mark.parametrize(
    ("losses", "patience", "settings", "epochs"),
    [
        ([3.0, 2.0, 2.0, 2.5, 1.0], 2, {}, 4),
        # Gains of 0.25 accumulate to one of more than 0.5 in epoch 4; then there is none in 3 epochs.
        ([3.0, 2.75, 2.5, 2.25, 2.0, 2.0, 2.0, 1.0], 3, {"min_delta": 0.5}, 7),
        # No single gain is more than 0.5.
        ([3.0, 2.75, 2.5, 2.25, 2.0, 2.0, 2.0, 1.0], 3, {"min_delta": 0.5, "cumulative_delta": False}, 4),
        # The gain of epoch 4 is, compared with epoch 3.
        ([3.0, 2.75, 2.5, 1.5, 1.25, 1.0, 0.75], 3, {"min_delta": 0.5, "cumulative_delta": False}, 7),
    ],
)
def test_early_stopping(losses: Sequence[float], patience: int, settings: dict[str, Any], epochs: int) -> None:
    def train(attach: Callable[[Toy], object]) -> tuple[int, int, float]:
        toy = Toy([1.0, 2.0, 4.0])

        report_losses(toy, losses)
        attach(toy)
        state = toy.trainer.run(toy.data, max_epochs=len(losses))
        return state.epoch, state.iteration, toy.weight

    def add_handler(toy: Toy) -> None:
        delta, is_cumulative = settings.get("min_delta", 0.0), settings.get("cumulative_delta", True)
        handler = EarlyStopping(
            patience, lambda engine: -engine.state.metrics["loss"], toy.trainer, delta, is_cumulative
        )
        toy.evaluator.add_event_handler(Events.COMPLETED, handler)

    def attach_hook(toy: Toy) -> None:
        hook = EarlyStoppingHook(monitor="loss", patience=patience, restore_best_weights=False, **settings)
        toy.attach(HookBus([hook]), evaluators={"val": toy.evaluator})

    expected = (epochs, 3 * epochs, -7.0 * epochs)
    assert train(add_handler) == expected
    assert train(attach_hook) == expected


@covers("`EMAHandler`", "`ema` with `warm_up: 0`, once per optimizer step; `momentum=0.0002` is `momentum: 0.9998`")
def test_averages() -> None:
    toy = Toy([1.0, 2.0, 4.0])
    handler = EMAHandler(toy.model, momentum=0.25)
    handler.attach(toy.trainer)
    bridge = toy.attach(HookBus([EMAHook(momentum=0.75, warm_up=0)]))
    toy.trainer.run(toy.data)
    expected = 0.75 * (0.75 * (0.25 * -1.0) + 0.25 * -3.0) + 0.25 * -7.0
    assert float(handler.ema_model.weight) == expected
    with bridge.active_run.weights.applied():
        assert toy.weight == expected


@covers("an evaluator at `EPOCH_COMPLETED(every=2)`", "`eval` with `interval: 2`, `at_end: false`")
def test_evaluator() -> None:
    def train(attach: Callable[[Toy, Callable[[Engine], object]], object]) -> list[tuple[int, float]]:
        toy, results = Toy([1.0, 2.0, 4.0]), list[tuple[int, float]]()

        def evaluate(engine: Engine) -> None:
            metrics = toy.evaluator.run(pairs([2.0, 4.0])).metrics
            results.append((engine.state.epoch, metrics["error"]))

        attach(toy, evaluate)
        toy.trainer.run(toy.data, max_epochs=5)
        return results

    def add_handler(toy: Toy, evaluate: Callable[[Engine], object]) -> None:
        toy.trainer.add_event_handler(Events.EPOCH_COMPLETED(every=2), evaluate)

    def attach_hook(toy: Toy, evaluate: Callable[[Engine], object]) -> None:
        hook = EvalHook(interval=2, at_end=False, save_best=False)
        toy.attach(HookBus([hook]), evaluators={"val": toy.evaluator}, validate=evaluate)

    expected = [(2, 42.0), (4, 84.0)]  # mean of |-14 * 2| and |-14 * 4|, and twice as much
    assert train(add_handler) == expected
    assert train(attach_hook) == expected


def _train_with_rates(attach: Callable[[Toy], object]) -> tuple[list[float], float]:
    """Return the learning rate of each of 6 iterations, and the final weight."""
    toy, rates = Toy([1.0, 2.0, 4.0]), list[float]()
    attach(toy)
    toy.trainer.add_event_handler(
        Events.ITERATION_STARTED, lambda engine: rates.append(toy.optimizer.param_groups[0]["lr"])
    )
    toy.trainer.run(toy.data, max_epochs=2)
    return rates, toy.weight


@covers("`LRScheduler`", "`param_scheduler` with `interval: step`, which is an optimizer step")
def test_learning_rates() -> None:
    def add_handler(toy: Toy) -> None:
        scheduler = LRScheduler(lr_scheduler.StepLR(toy.optimizer, step_size=2, gamma=0.5))
        toy.trainer.add_event_handler(Events.ITERATION_STARTED, scheduler)

    def attach_hook(toy: Toy) -> None:
        config = {"type": "StepLR", "step_size": 2, "gamma": 0.5}
        toy.attach(HookBus([ParamSchedulerHook(schedulers=[config], interval="step")]))

    expected = ([1.0, 1.0, 0.5, 0.5, 0.25, 0.25], -(1.0 + 2.0 + 0.5 * 4.0 + 0.5 * 1.0 + 0.25 * 2.0 + 0.25 * 4.0))
    assert _train_with_rates(add_handler) == expected
    assert _train_with_rates(attach_hook) == expected


@covers("`create_lr_scheduler_with_warmup`", "`param_scheduler` with `interval: step` and `lr_scheduler.SequentialLR`")
def test_learning_rates_with_warm_up() -> None:
    def add_handler(toy: Toy) -> None:
        scheduler = lr_scheduler.ExponentialLR(toy.optimizer, gamma=0.5)
        with_warm_up = create_lr_scheduler_with_warmup(scheduler, warmup_start_value=0.5, warmup_duration=3)
        toy.trainer.add_event_handler(Events.ITERATION_STARTED, with_warm_up)

    def attach_hook(toy: Toy) -> None:
        parts = [
            lr_scheduler.LinearLR(toy.optimizer, start_factor=0.5, total_iters=2),
            lr_scheduler.ExponentialLR(toy.optimizer, gamma=0.5),
        ]
        scheduler = lr_scheduler.SequentialLR(toy.optimizer, parts, milestones=[2])
        toy.attach(HookBus([ParamSchedulerHook(schedulers=[{"scheduler": scheduler}], interval="step")]))

    expected = [0.5, 0.75, 1.0, 0.5, 0.25, 0.125]
    weight = -(0.5 * 1.0 + 0.75 * 2.0 + 1.0 * 4.0 + 0.5 * 1.0 + 0.25 * 2.0 + 0.125 * 4.0)
    assert _train_with_rates(add_handler) == (expected, weight)
    assert _train_with_rates(attach_hook) == (expected, weight)


@covers(
    "`FastaiLRFinder`",
    "`lr_finder` with `smoothing: 0.95`, whose average is bias-corrected, and `early_stop_threshold: 5.0`",
)
@pytest.mark.filterwarnings("ignore:Run completed without loss diverging")
def test_range_test() -> None:
    def compute_loss(outputs: Any, _: Any) -> Any:
        return (outputs - 3).square().mean()

    toy, rates = Toy([float(i % 3 + 1) for i in range(9)]), list[float]()
    engine = create_supervised_trainer(toy.model, toy.optimizer, compute_loss)
    engine.add_event_handler(Events.ITERATION_STARTED, lambda _: rates.append(toy.optimizer.param_groups[0]["lr"]))
    finder, states = FastaiLRFinder(), list[float]()
    engine.add_event_handler(Events.ITERATION_COMPLETED, lambda _: states.append(toy.weight))
    settings: dict[str, Any] = {"num_iter": 8, "start_lr": 1e-3, "end_lr": 1e-1, "diverge_th": 1e9}
    with finder.attach(engine, {"model": toy.model, "optimizer": toy.optimizer}, smooth_f=0.0, **settings) as test:
        test.run(toy.data)
    # The first iteration of Ignite has a learning rate of neither setting, and the others start at the second one.
    hook = LRFinderHook(
        min_lr=1e-3 * 100 ** (1 / 8), max_lr=1e-1, num_training_steps=8, smoothing=0.0, early_stop_threshold=None
    )
    with torch.no_grad():
        toy.model.weight.fill_(states[0])
    options: dict[str, Any] = {"default_hooks": False, "device": "cpu", "work_dir": None, "hooks": [hook]}
    Trainer(toy.model, toy.optimizer, compute_loss, toy.data[1:], epochs=1, **options).fit()
    assert hook.result is not None
    assert hook.result.rates == pytest.approx(rates[1:])
    assert hook.result.losses == pytest.approx(finder.get_results()["loss"][1:], rel=1e-4)


@covers("`TerminateOnNan`", "`check_invalid_loss` with `policy: stop`, `interval: 1`")
def test_invalid_loss() -> None:
    def train(attach: Callable[[Toy], object]) -> int:
        toy = Toy([1.0, 2.0, float("nan"), 4.0])
        attach(toy)
        return int(toy.trainer.run(toy.data, max_epochs=2).iteration)

    def add_handler(toy: Toy) -> None:
        toy.trainer.add_event_handler(Events.ITERATION_COMPLETED, TerminateOnNan())

    def attach_hook(toy: Toy) -> None:
        toy.attach(HookBus([CheckInvalidLossHook(interval=1, policy="stop")]))

    assert train(add_handler) == 3
    assert train(attach_hook) == 3


class TimedToy(Toy):
    """Toy with 4 batches and a clock: 1 s to load a batch, and 2 s for the optimizer step.

    Attributes:
        now: Time in seconds.
    """

    def __init__(self) -> None:
        super().__init__([1.0] * 4)
        self.now = 1000.0
        self.optimizer.register_step_post_hook(lambda *_: self._advance(2.0))

    def read_clock(self) -> float:
        """Return the time."""
        return self.now

    def __iter__(self) -> Iterator[Any]:
        for batch in self.data:
            self._advance(1.0)
            yield batch

    def __len__(self) -> int:
        return len(self.data)

    def _advance(self, seconds: float) -> None:
        self.now += seconds


@covers("`TimeLimit`", "`time_limit` with `per_run: true`")
def test_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    def train(attach: Callable[[TimedToy], object]) -> int:
        toy = TimedToy()
        monkeypatch.setattr("ignite.handlers.time_limit.time", SimpleNamespace(time=toy.read_clock))
        attach(toy)
        return int(toy.trainer.run(toy, max_epochs=2).iteration)

    def add_handler(toy: TimedToy) -> None:
        toy.trainer.add_event_handler(Events.ITERATION_COMPLETED, TimeLimit(10))

    def attach_hook(toy: TimedToy) -> None:
        hook = TimeLimitHook(max_time="10s", per_run=True)
        hook.timer = toy.read_clock
        toy.attach(HookBus([hook]))

    assert train(add_handler) == 4  # the first iteration after 10 s: each takes 3 s
    assert train(attach_hook) == 4


@covers("`BasicTimeProfiler`", "`iter_timer`, `time_tracking`")
def test_times(monkeypatch: pytest.MonkeyPatch) -> None:
    toy, profiler = TimedToy(), BasicTimeProfiler()
    monkeypatch.setattr("ignite.handlers.timing.perf_counter", toy.read_clock)
    profiler.attach(toy.trainer)
    iter_timer, time_tracking = IterTimerHook(interval=2), TimeTrackingHook()
    iter_timer.timer = time_tracking.timer = toy.read_clock
    bus = RecordingBus([iter_timer, time_tracking])
    toy.attach(bus)
    toy.trainer.run(toy, max_epochs=2)
    results = profiler.get_results()
    assert (results["processing_stats"]["total"], results["processing_stats"]["mean"]) == (16.0, 2.0)
    assert (results["dataflow_stats"]["total"], results["dataflow_stats"]["mean"]) == (8.0, 1.0)
    records = [arguments["values"] for arguments in bus.get_arguments("log_scalars")]
    times = [(values["time/iter"], values["time/data"]) for values in records if "time/iter" in values]
    assert times == [(3.0, 1.0)] * 4  # the iteration contains the loading of its batch
    assert [values["time/epoch"] for values in records if "time/epoch" in values] == [12.0, 12.0]
