"""The range test: its steps, its result, its application, and that it leaves no trace."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hookbus import Hook, HookBus, Run, Trainer, hookimpl
from hookbus.errors import ConfigError, HookError, LoopError
from hookbus.testing import check_hook
from hookbus_ema import EMAHook
from hookbus_finders import LRFinderHook, RangeTest
from hookbus_logger import JsonlHook, read_jsonl
from hookbus_schedule import ParamSchedulerHook
from tests.toys import Saver

from .toys import Observer, build_loader, build_trainer

QUICK: dict[str, Any] = {"num_training_steps": 10, "min_lr": 1e-4, "max_lr": 1.0, "smoothing": 0.0}


class Losses(Hook):
    """Replace the step by one with given losses, and record the learning rates."""

    def __init__(self, losses: Iterator[float]) -> None:
        super().__init__()
        self.losses, self.rates, self.is_trial = losses, list[list[float]](), list[bool]()

    def train_step(self, run: Run) -> Any:
        self.is_trial.append(run.trial is not None)
        self.rates.append([group["lr"] for group in run.optimizer.param_groups])
        run.optimizer.step()
        return {"loss": torch.tensor(next(self.losses, 1.0), dtype=torch.float64)}


def find(losses: list[float], **settings: Any) -> tuple[RangeTest, Losses, Run]:
    """Train with given losses of the trial steps."""
    hooks = [LRFinderHook(**{**QUICK, **settings}), steps := Losses(iter(losses))]
    run = build_trainer(*hooks, epochs=1).fit()
    return run.require("lr_finder"), steps, run


@pytest.mark.slow
def test_hook_passes_the_conformance_checks() -> None:
    class WithLoader(LRFinderHook):
        def check(self, run: Run) -> None:
            run.train_loader = build_conformance_loader()
            super().check(run)

    check_hook(WithLoader, num_training_steps=4)


def build_conformance_loader() -> list[Any]:
    generator = torch.Generator().manual_seed(0)
    return [(torch.randn(2, 3, generator=generator), torch.tensor([0, 1])) for _ in range(2)]


def test_learning_rates_keep_their_ratio_and_losses_are_recorded() -> None:
    result, steps, run = find([5, 5, 4, 2, 1, 1, 2, 3, 3, 3], num_training_steps=10)
    expected = [10 ** (-4 + 4 * i / 9) for i in range(10)]
    assert result.rates == pytest.approx(expected, rel=1e-12)
    assert [rates[1] for rates in steps.rates[:10]] == pytest.approx(expected, rel=1e-12)
    assert [rates[0] for rates in steps.rates[:10]] == pytest.approx([rate / 10 for rate in expected], rel=1e-12)
    assert result.losses == (5, 5, 4, 2, 1, 1, 2, 3, 3, 3)
    # Slopes at the indices 2 and 3: -1.5.
    assert result.suggestion == pytest.approx(expected[2])
    assert steps.is_trial == [True] * 10 + [False] * 8
    assert steps.rates[10:] == [[0.001, 0.01]] * 8
    assert run.steps_done == 8


@pytest.mark.parametrize(
    ("losses", "threshold", "count"),
    [
        ([1, 1, 4, 4.5, 1, 1, 1, 1, 1, 1], 4.0, 4),
        ([1, 1, 4, 4.5, 1, 1, 1, 1, 1, 1], None, 10),
        ([1, 1, math.nan, 1, 1, 1, 1, 1, 1, 1], None, 3),
        ([-1, -1, 1.5, 2.5, 1, 1, 1, 1, 1, 1], 4.0, 4),  # 3 times the absolute value above the minimum
    ],
)
def test_test_ends_early_if_the_loss_diverges(losses: list[float], threshold: float | None, count: int) -> None:
    result, steps, _ = find(losses, early_stop_threshold=threshold)
    assert len(result.rates) == len(result.losses) == count
    assert sum(steps.is_trial) == count


def test_losses_are_smoothed() -> None:
    result, _, _ = find([4.0, 2.0, 1.0], num_training_steps=4, smoothing=0.5)
    assert result.losses[:3] == pytest.approx([4.0, 8 / 3, 12 / 7])


def test_step_is_an_optimizer_step_of_accumulated_batches() -> None:
    hook, counts = LRFinderHook(**QUICK), list[int]()

    class Count(Hook):
        @hookimpl(wrapper=True)
        def train_step(self, run: Run) -> Iterator[None]:
            counts.append(run.trial is not None)
            return (yield)

    run = build_trainer(hook, Count(), epochs=1, accumulate=2).fit()
    assert sum(counts) == 2 * len(run.require("lr_finder").rates)


@pytest.mark.parametrize("apply", [False, True])
def test_missing_suggestion_is_a_warning(apply: bool, caplog: pytest.LogCaptureFixture) -> None:
    result, _, run = find([1.0] * 10, apply=apply)
    assert result.suggestion is None
    (message,) = (record.message for record in caplog.records if record.levelname == "WARNING")
    assert "no suggestion after 10 of 10 learning rates, because the loss does not decrease" in message
    assert [group["lr"] for group in run.optimizer.param_groups] == [0.001, 0.01]


class TestApply:
    LOSSES = (5, 5, 4, 2, 1, 1, 2, 3, 3, 3)
    SUGGESTION = 10 ** (-4 + 4 * 2 / 9)

    def test_groups_keep_their_ratio(self) -> None:
        _, steps, _ = find(list(self.LOSSES), apply=True)
        assert steps.rates[10:] == [pytest.approx([self.SUGGESTION / 10, self.SUGGESTION])] * 8

    def test_scheduler_of_the_trainer_follows(self) -> None:
        steps = Losses(iter(self.LOSSES))
        trainer = build_trainer(LRFinderHook(**QUICK, apply=True), steps, epochs=1)
        trainer = Trainer(
            trainer.model,
            optimizer := trainer.optimizer,
            None,
            build_loader(),
            scheduler=torch.optim.lr_scheduler.OneCycleLR(optimizer, [0.01, 0.1], total_steps=8, pct_start=0.5),
            scheduler_interval="step",
            epochs=1,
            work_dir=None,
            default_hooks=False,
            hooks=[LRFinderHook(**QUICK, apply=True), steps],
        )
        trainer.fit()
        # Its peak is the suggestion.
        assert max(rates[1] for rates in steps.rates[10:]) == pytest.approx(self.SUGGESTION)
        assert steps.rates[10][1] == pytest.approx(self.SUGGESTION / 25)

    def test_scheduler_of_a_hook_follows(self) -> None:
        steps = Losses(iter(self.LOSSES))
        halving = ParamSchedulerHook(schedulers={"type": "ExponentialLR", "gamma": 0.5, "interval": "step"})
        build_trainer(LRFinderHook(**QUICK, apply=True), halving, steps, epochs=1).fit()
        expected = [self.SUGGESTION * 0.5**i for i in range(8)]
        assert [rates[1] for rates in steps.rates[10:]] == pytest.approx(expected)

    def test_resumed_run_has_the_learning_rate_and_the_result(self, tmp_path: Path) -> None:
        first, steps = LRFinderHook(**QUICK, apply=True), Losses(iter(self.LOSSES))
        build_trainer(first, steps, Saver("after_train_iter", 3), epochs=1, work_dir=tmp_path / "a").fit()
        second, rest = LRFinderHook(**QUICK, apply=True), Losses(iter(()))
        run = build_trainer(second, rest, epochs=1, work_dir=tmp_path / "a", resume="auto").fit()
        assert rest.is_trial == [False] * 5
        assert rest.rates == [pytest.approx([self.SUGGESTION / 10, self.SUGGESTION])] * 5
        assert run.get("lr_finder") == first.result


def train(*hooks: Any, **options: Any) -> Observer:
    observer = Observer()
    trainer = build_trainer(*hooks, EMAHook(momentum=0.5), observer, **options)
    trainer.fit()
    return observer


def assert_same(first: Observer, second: Observer) -> None:
    assert first.inputs == second.inputs
    assert first.means == second.means
    assert first.state == second.state


@pytest.mark.parametrize("options", [{}, {"precision": "fp16", "accumulate": 2}], ids=["plain", "scaled"])
def test_training_is_bitwise_that_without_the_test(options: dict[str, Any]) -> None:
    assert_same(train(LRFinderHook(**QUICK), **options), train(**options))


def test_resumed_training_is_bitwise_that_without_the_test(tmp_path: Path) -> None:
    whole = train()
    saver = Saver("after_train_iter", 5)
    train(LRFinderHook(**QUICK), saver, work_dir=tmp_path / "run")
    resumed = train(hook := LRFinderHook(**QUICK), work_dir=tmp_path / "run", resume=saver.files[0])
    assert resumed.state == whole.state
    assert resumed.inputs == whole.inputs[5:]
    assert hook.result is not None


def test_hook_that_is_added_to_a_resumed_run_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    build_trainer(Saver("after_train_iter", 3), epochs=1, work_dir=tmp_path / "a").fit()
    hook = LRFinderHook(**QUICK)
    build_trainer(hook, epochs=1, work_dir=tmp_path / "a", resume="auto").fit()
    assert hook.result is None
    assert "lr_finder: not executed, because the training continues after iteration 3." in caplog.text


def test_second_training_does_not_repeat_the_test() -> None:
    hook = LRFinderHook(**QUICK)
    trainer = build_trainer(hook, epochs=1)
    trainer.fit()
    result = hook.result
    run = trainer.fit(epochs=2)
    assert run.get("lr_finder") is hook.result is result


def test_plot_table_and_records_are_written(tmp_path: Path) -> None:
    hooks = [LRFinderHook(**QUICK, name="rates"), JsonlHook()]
    result = build_trainer(*hooks, epochs=1, work_dir=tmp_path / "run").fit().require("lr_finder")
    folder = tmp_path / "run/visualization/rates"
    assert sorted(path.name for path in folder.iterdir()) == ["lr_finder.csv", "lr_finder.png"]
    assert (folder / "lr_finder.csv").read_text() == result.to_csv()
    rows = [row for row in read_jsonl(tmp_path / "run/logs/metrics.jsonl") if row["kind"] != "config"]
    assert {"rates/suggestion": result.suggestion} in [row.get("values") for row in rows]
    assert result.to_csv() in [row.get("text") for row in rows]
    assert [row["step"] for row in rows] == sorted(row["step"] for row in rows)


class TestCustomLoop:
    def run_loop(self, hook: Hook, *, returns: Any = "outputs", declares: bool = True, **options: Any) -> Run:
        model = nn.Linear(4, 2)
        optimizer, bus = torch.optim.SGD(model.parameters(), lr=0.1), HookBus([hook])

        def step(run: Run, batch: Any) -> Any:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
            loss.backward()
            optimizer.step()
            return {"outputs": {"loss": loss.detach()}, "loss": loss.item(), "none": {"output": 1}}[returns]

        train_step = bus.action("train_step", step) if declares else None
        loader = build_loader()
        with bus.run(**{"model": model, "optimizer": optimizer, "train_loader": loader, "epochs": 1, **options}) as run:
            for _ in run.epochs():
                for i, batch in run.batches(loader):
                    bus.emit("before_train_iter", batch_idx=i, batch=batch)
                    if train_step is not None:
                        train_step(batch)
                    bus.emit("after_train_iter", batch_idx=i, batch=batch)
        return run

    @pytest.mark.parametrize("returns", ["outputs", "loss"])
    def test_step_of_the_loop_is_executed(self, returns: str) -> None:
        run = self.run_loop(LRFinderHook(**QUICK), returns=returns)
        assert len(run.require("lr_finder").rates) == 10
        assert run.steps_done == 8

    def test_step_without_a_loss_is_refused(self) -> None:
        with pytest.raises(LoopError, match="expected the loss, or a mapping with 'loss', got a mapping with output"):
            self.run_loop(LRFinderHook(**QUICK), returns="none")

    def test_loop_without_the_action_is_refused(self) -> None:
        with pytest.raises(LoopError, match=r"bus\.action\('train_step', step\)"):
            self.run_loop(LRFinderHook(**QUICK), declares=False)

    def test_run_without_a_loader_or_an_optimizer_is_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"Pass `train_loader` to `bus\.run\(\)`"):
            self.run_loop(LRFinderHook(), train_loader=None)
        with pytest.raises(HookError, match="requires the optimizer of the run, got None"):
            self.run_loop(LRFinderHook(), optimizer=None)

    def test_loader_that_cannot_be_read_again_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="can be read before the training, got list_iterator. Pass a loader"):
            self.run_loop(LRFinderHook(), train_loader=iter([1]))

    def test_learning_rate_of_zero_is_refused(self) -> None:
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.0)
        with pytest.raises(ConfigError, match="a learning rate > 0, which is scaled, got 0"):
            self.run_loop(LRFinderHook(), optimizer=optimizer)

    def test_several_optimizers_are_refused(self) -> None:
        optimizers = {name: torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1) for name in ("g", "d")}
        with pytest.raises(ConfigError, match="requires a single optimizer, whose learning rate it changes, got g, d"):
            self.run_loop(LRFinderHook(), optimizer=optimizers)


def test_empty_loader_is_refused() -> None:
    trainer = build_trainer(LRFinderHook(**QUICK))
    trainer.train_loader = build_loader(100, drop_last=True)
    with pytest.raises(LoopError, match="the training loader yielded no batch"):
        trainer.fit()


def test_short_run_is_tested_unless_it_is_a_fast_dev_run(caplog: pytest.LogCaptureFixture) -> None:
    limited, dev = LRFinderHook(num_training_steps=4), LRFinderHook(num_training_steps=4)
    build_trainer(limited, epochs=1, limit_train_batches=1).fit()
    assert limited.result is not None
    assert len(limited.result.rates) == 4
    build_trainer(dev, fast_dev_run=True).fit()
    assert dev.result is None
    assert "lr_finder: not executed, because the training is limited by `fast_dev_run`." in caplog.messages
