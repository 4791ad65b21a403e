"""The run object that hooks receive."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hookbus import Hook, HookBus, Trainer
from hookbus._run.run import BestResult, Run
from hookbus.errors import MetricError
from hookbus.metrics.results import Metrics
from hookbus.testing import RecordingBus, fake_training, fingerprint
from tests import toys


def iterate(bus: HookBus, *batches: Any) -> None:
    for batch in batches:
        bus.emit("before_train_iter", batch=batch)
        bus.emit("after_train_iter", batch=batch)


class TestOptimizerSteps:
    @pytest.mark.parametrize("counts_steps", [False, True])
    def test_iterations_are_steps_without_an_optimizer_unless_the_loop_counts_them(self, counts_steps: bool) -> None:
        bus = HookBus()
        with bus.run(counts_steps=counts_steps) as run:
            iterate(bus, 1, 2)
            if counts_steps:
                bus.emit("before_optimizer_step")
                bus.emit("after_optimizer_step")
            assert run.steps_done == (1 if counts_steps else 2)

    def test_run_is_accumulating_between_an_iteration_and_its_step(self) -> None:
        model = nn.Linear(1, 1)
        bus, optimizer = HookBus(), torch.optim.SGD(model.parameters(), lr=0.1)
        with bus.run(model=model, optimizer=optimizer) as run:
            assert not run.accumulating
            iterate(bus, 1)
            assert run.accumulating
            optimizer.step()
            iterate(bus, 1)
            assert not run.accumulating
        with HookBus().run() as run:
            iterate(run.bus, 1)
            assert not run.accumulating

    def test_run_of_a_trainer_is_accumulating_between_micro_batches(self) -> None:
        seen: list[bool] = []
        training = toys.trainer(iterations=4, accumulate=2)
        training.bus.on("after_train_iter")(lambda run: seen.append(run.accumulating))
        training.fit()
        assert seen == [True, False, True, False]


class TestLog:
    def test_log_after_the_run_is_an_error(self) -> None:
        bus = HookBus()
        with bus.run() as run:
            run.log(a=1.0)
        with pytest.raises(MetricError, match=r"run\.log: the run has ended, got 'b', 'c'\. Log inside of"):
            run.log({"b": 1.0}, c=2.0)

    def test_log_accepts_a_mapping_keywords_or_both(self) -> None:
        bus = HookBus()
        window = bus.current.metrics.window("mine")
        bus.current.log({"a": 1.0, "val/b": 2.0}, c=3)
        bus.current.log(d=torch.tensor(4.0))
        bus.current.log({"a": 5.0})
        assert dict(bus.current.metrics.means(window)) == {"train/a": 5.0, "val/b": 2.0, "train/c": 3.0, "train/d": 4.0}

    def test_all_metrics_are_the_means_of_the_epoch_and_the_latest_results(self) -> None:
        bus = HookBus()
        bus.on("after_train_iter")(lambda run: run.log(loss=float(run.iters_done)))
        with bus.run(validate=lambda: {"loss": 0.25}) as run:
            bus.emit("before_train_epoch")
            iterate(bus, 1, 2)
            run.validate()
            assert dict(run.all_metrics()) == {"train/loss": 1.5, "val/loss": 0.25}

    def test_all_metrics_equal_the_metrics_argument_of_hooks(self) -> None:
        class CallAllMetrics(Hook):
            def after_train_epoch(self, run: Run) -> None:
                returned.append(dict(run.all_metrics()))

            after_epoch = after_train = after_train_epoch

        class TakeMetrics(Hook):
            def after_train_epoch(self, metrics: Metrics) -> None:
                received.append(dict(metrics))

            after_epoch = after_train = after_train_epoch

        returned: list[dict[str, float]] = []
        received: list[dict[str, float]] = []
        for hook in (CallAllMetrics(), TakeMetrics()):
            fake_training([hook], epochs=2, batches=2, losses=float, scores=lambda epoch: {"accuracy": epoch / 10})
        assert returned == received
        assert returned[0] == {"train/loss": 1.5}
        assert returned[4] == {"train/loss": 3.5, "val/accuracy": 0.2}

    def test_hook_registered_before_the_first_epoch_receives_metrics(self) -> None:
        bus, seen = HookBus(), []
        with bus.run():
            bus.on("after_train_epoch")(lambda metrics: seen.append(dict(metrics)))
            bus.emit("before_train_epoch")
            for loss in (1.0, 2.0):
                bus.emit("after_train_iter", outputs={"loss": loss})
            bus.emit("after_train_epoch")
        assert seen == [{"train/loss": 1.5}]


class TestConfig:
    def test_config_is_empty_by_default(self) -> None:
        with HookBus().run() as run:
            assert (run.config, run.plain_config(), run.get("config")) == ({}, {}, {})

    def test_plain_config_contains_built_in_types(self) -> None:
        class Settings:
            def model_dump(self, mode: str = "python") -> dict[str, str]:
                return {"mode": mode}

        settings = Settings()
        with HookBus().run(config=settings) as run:
            assert run.config is run.require("config") is settings
            assert run.plain_config() == {"mode": "json"}

    def test_plain_config_contains_no_secrets(self) -> None:
        with HookBus().run(config={"lr": 0.1, "hub": {"api_key": "abc"}}) as run:
            assert run.config["hub"] == {"api_key": "abc"}
            assert run.plain_config() == {"lr": 0.1, "hub": {"api_key": "***"}}


class MainRankHook(Hook):
    ranks = "main"


class TestServes:
    @pytest.mark.parametrize(("rank", "expected"), [("0", True), ("1", False)])
    def test_main_rank_hook_is_active_on_rank_0_only(
        self, monkeypatch: pytest.MonkeyPatch, rank: str, expected: bool
    ) -> None:
        monkeypatch.setenv("RANK", rank)
        run = HookBus().current
        assert (
            run.runs_on_this_rank(MainRankHook()),
            run.runs_on_this_rank(Hook()),
            run.runs_on_this_rank(object()),
        ) == (expected, True, True)


class TestState:
    def trained_run(self) -> Run:
        run = fake_training(epochs=2, scores=lambda epoch: {"loss": 0.5 / epoch}).run
        run.best["val/loss"] = BestResult(0.25, epoch=2, step=6, weights="averaged", path=Path("best.pth"))
        run.best["val/accuracy"] = BestResult(0.5, epoch=1, step=3)
        return run

    def test_state_restores_another_run_to_the_same_position(self) -> None:
        run = self.trained_run()
        other = Run(HookBus(), optimizer=torch.optim.SGD(nn.Linear(1, 1).parameters()))
        other.load_state_dict(run.state_dict())
        assert fingerprint(other.state_dict()) == fingerprint(run.state_dict())
        assert (other.epochs_done, other.iters_done, other.steps_done) == (2, 6, 6)
        assert other.best == run.best
        assert (other.seed, other.validations.validated_at) == (run.seed, 6)
        assert dict(other.metrics.results) == {"val/loss": 0.25}
        json.dumps(run.state_dict()["best"])

    def test_restored_state_replaces_the_best_results(self) -> None:
        other = HookBus().current
        best = other.best
        other.best["val/f1"] = BestResult(0.1, 1, 1)
        other.load_state_dict(self.trained_run().state_dict())
        assert sorted(other.best) == ["val/accuracy", "val/loss"]
        assert other.best is best

    def test_run_restored_at_its_limit_should_stop(self) -> None:
        state = self.trained_run().state_dict()
        for iterations, expected in ((6, True), (7, False)):
            with HookBus().run(iterations=iterations) as run:
                run.load_state_dict(state)
                assert run.should_stop is expected


class TestContinuedRun:
    def test_continued_run_keeps_counts_metrics_and_best_results(self) -> None:
        bus = RecordingBus()
        first = fake_training(bus=bus, epochs=1, scores=lambda epoch: {"loss": 0.5}).run
        first.best["val/loss"] = BestResult(0.5, 1, 3)
        first.orphaned_hook_states["gone"] = {"state": {}}
        second = fake_training(bus=bus, epochs=1, scores=lambda epoch: {"loss": 0.5}).run
        assert second is not first
        assert (second.iters_done, second.best, second.orphaned_hook_states) == (3, first.best, {"gone": {"state": {}}})
        assert dict(second.metrics.results) == {"val/loss": 0.5}
        assert (second.stops, second.outcome, second.exception) == ([], "finished", None)

    def test_stop_of_a_run_does_not_stop_the_continued_run(self) -> None:
        bus = HookBus()
        with bus.run(epochs=2) as run:
            run.request_stop("enough")
            run.settle()
            assert run.should_stop
        with bus.run(epochs=2) as run:
            assert not run.should_stop


class TestSeed:
    def test_seed_defaults_to_the_initial_seed_of_torch(self) -> None:
        torch.manual_seed(11)
        assert Run(HookBus()).seed == 11
        assert Run(HookBus(), seed=0).seed == 0

    def test_seed_is_zero_if_torch_is_not_imported(self, monkeypatch: pytest.MonkeyPatch) -> None:
        bus = HookBus()
        monkeypatch.delitem(sys.modules, "torch")
        assert Run(bus).seed == 0


def test_unknown_attribute_of_a_run_raises() -> None:
    run = HookBus().current
    with pytest.raises(AttributeError, match="should_stpo"):
        run.should_stpo = True  # type: ignore[attr-defined]


def test_mode_is_that_of_the_run_in_separate_validations_and_tests(tmp_path: Path) -> None:
    seen: list[tuple[str, str]] = []
    training: Trainer = toys.trainer(val_loader=toys.pairs(), test_loader=toys.pairs(), epochs=1)
    training.bus.on("before_run")(lambda run, mode: seen.append((mode, run.mode)))
    training.fit()
    training.validate()
    training.test()
    assert seen == [("train", "train"), ("val", "val"), ("test", "test")]
