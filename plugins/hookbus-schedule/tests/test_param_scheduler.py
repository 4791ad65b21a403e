"""Stepping of schedulers by the hook, the Trainer and custom loops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR, ReduceLROnPlateau

from hookbus import Hook, HookBus, Metrics, Run, Trainer
from hookbus.errors import CheckpointError, ConfigError
from hookbus.testing import check_hook
from hookbus_schedule import AccumulationHook, ParamSchedulerHook

HALVE = {"type": "ExponentialLR", "gamma": 0.5}
PLATEAU = {"type": "ReduceLROnPlateau", "factor": 0.5, "patience": 0}


class RateRecorder(Hook):
    """Record learning rate and momentum after each iteration, and the learning rate after each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.rates: list[float] = []
        self.momenta: list[float] = []
        self.at_epochs: list[float] = []

    def after_train_iter(self, run: Run) -> None:
        self.rates.append(run.optimizer.param_groups[0]["lr"])  # type: ignore[union-attr]
        self.momenta.append(run.optimizer.param_groups[0]["momentum"])  # type: ignore[union-attr]

    def after_epoch(self, run: Run) -> None:
        self.at_epochs.append(run.optimizer.param_groups[0]["lr"])  # type: ignore[union-attr]


def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).square().mean()  # type: ignore[no-any-return]


def build_plateau(optimizer: Any, **settings: Any) -> ReduceLROnPlateau:
    return ReduceLROnPlateau(optimizer, **settings)


def make_trainer(*hooks: Any, scores: list[float] | None = None, scheduler: Any = None, **options: Any) -> Trainer:
    """Return a trainer of two epochs of four iterations with learning rate 1 and momentum 0.8."""
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.8)
    optimizer.param_groups[0]["lr"] = 1.0
    defaults: dict[str, Any] = {
        "step_fn": loss,
        "train_loader": [torch.zeros(1, 1)] * 4,
        "val_loader": None if scores is None else [torch.zeros(1, 1)],
        "scheduler": None if scheduler is None else scheduler(optimizer),
        "metrics": {} if scores is None else {"score": lambda output, target: 0.0},
        "epochs": 2,
    }
    return Trainer(
        model, optimizer, hooks=hooks, default_hooks=False, work_dir=None, device="cpu", **{**defaults, **options}
    )


def run_trainer(*hooks: Any, **options: Any) -> tuple[Run, RateRecorder]:
    """Train with the trainer of `make_trainer`."""
    return make_trainer(*hooks, recorder := RateRecorder(), **options).fit(), recorder


def run_custom_loop(
    *hooks: Any, scores: list[Any] | None = None, epochs: int = 2, **options: Any
) -> tuple[Run, RateRecorder]:
    """Train in the same way with a custom loop; `scores` are the results of the validations."""
    model, recorder = nn.Linear(1, 1), RateRecorder()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.8)
    scheduler = options.pop("scheduler", None)
    results = iter(scores or ())
    if scores is not None:
        options["validate"] = lambda: next(results)
    bus = HookBus([*hooks, recorder])
    with bus.run(
        model=model, optimizer=optimizer, epochs=epochs, scheduler=scheduler and scheduler(optimizer), **options
    ) as run:
        for _ in run.epochs():
            bus.emit("before_train_epoch")
            for i, batch in run.batches([torch.zeros(1, 1)] * 4):
                bus.emit("before_train_iter", batch_idx=i, batch=batch)
                optimizer.step()
                bus.emit("after_train_iter", batch_idx=i, batch=batch)
            if scores is not None:
                run.request_validation()
            bus.emit("after_train_epoch")
    return run, recorder


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [HALVE, {**HALVE, "interval": "step"}, {**HALVE, "parameter": "momentum"}, PLATEAU]
)
def test_hook_passes_the_conformance_checks(settings: dict[str, Any]) -> None:
    check_hook(ParamSchedulerHook, schedulers=[settings])


@pytest.mark.parametrize("loop", [run_trainer, run_custom_loop])
class TestStepping:
    def test_scheduler_is_stepped_per_epoch_by_default(self, loop: Any) -> None:
        recorder = loop(ParamSchedulerHook(schedulers=HALVE))[1]

        assert recorder.rates == [1.0] * 4 + [0.5] * 4
        assert recorder.at_epochs == [0.5, 0.25]

    def test_scheduler_can_be_stepped_per_optimizer_step(self, loop: Any) -> None:
        for settings in ({"schedulers": {**HALVE, "interval": "step"}}, {"schedulers": HALVE, "interval": "step"}):
            assert loop(ParamSchedulerHook(settings), epochs=1)[1].rates == [0.5, 0.25, 0.125, 0.0625]

    def test_multiple_schedulers_are_stepped(self, loop: Any) -> None:
        schedulers = [HALVE, {**HALVE, "parameter": "momentum", "interval": "step"}]
        recorder = loop(ParamSchedulerHook(schedulers=schedulers))[1]

        assert recorder.at_epochs == [0.5, 0.25]
        assert recorder.momenta == pytest.approx([0.8 / 2**i for i in range(1, 9)])

    def test_scheduler_is_not_stepped_after_a_truncated_epoch(self, loop: Any) -> None:
        class StopHook(Hook):
            def after_train_iter(self, run: Run) -> None:
                if run.iters_done == 6:
                    run.request_stop("enough")

        assert loop(ParamSchedulerHook(schedulers=HALVE), StopHook())[1].at_epochs == [0.5, 0.5]

    def test_schedulers_continue_after_a_resume(self, loop: Any, kit: Any, tmp_path: Path) -> None:
        settings = {"schedulers": [HALVE, {**HALVE, "parameter": "momentum", "interval": "step"}]}
        uninterrupted = loop(ParamSchedulerHook(settings), epochs=3)[1]
        for at in (3, 4, 6):
            path = tmp_path / f"{at}.pth"
            loop(ParamSchedulerHook(settings), kit.SaveAt(path, at), epochs=3)
            resumed = loop(ParamSchedulerHook(settings), epochs=3, resume=path)[1]

            assert resumed.rates == uninterrupted.rates[at:]
            assert resumed.momenta == uninterrupted.momenta[at:]

    def test_checkpoint_with_other_schedulers_is_an_error(self, loop: Any, kit: Any, tmp_path: Path) -> None:
        path = tmp_path / "saved.pth"
        loop(ParamSchedulerHook(schedulers=HALVE), kit.SaveAt(path, 1))

        with pytest.raises(CheckpointError, match=r"must be that of the checkpoint \(1\), got 2\."):
            loop(ParamSchedulerHook(schedulers=[HALVE, HALVE]), resume=path)


class TestLength:
    """A run of 2 epochs with 4 iterations is resumed with 4 epochs."""

    def settings(self, total: int) -> dict[str, Any]:
        one_cycle = {"type": "OneCycleLR", "max_lr": 1.0, "total_steps": total}
        return {"schedulers": {**one_cycle, "interval": "step"}}

    def test_scheduler_that_ends_early_is_refused_before_training(self, kit: Any, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="Tried to step 8 times: it was built for 7 steps, and the run needs 8"):
            run_trainer(ParamSchedulerHook(self.settings(7)))
        run_trainer(ParamSchedulerHook(self.settings(8)), kit.SaveAt(tmp_path / "a.pth", 8))
        with pytest.raises(ConfigError, match="Tried to step 9 times: it was built for 8 steps, and the run needs 16"):
            run_trainer(ParamSchedulerHook(self.settings(8)), epochs=4, resume=tmp_path / "a.pth")

    def test_scheduler_that_was_built_for_the_new_length_is_used(self, kit: Any, tmp_path: Path) -> None:
        run_trainer(ParamSchedulerHook(self.settings(8)), kit.SaveAt(tmp_path / "a.pth", 8))
        run, _ = run_trainer(ParamSchedulerHook(self.settings(16)), epochs=4, resume=tmp_path / "a.pth")
        assert run.iters_done == 16

    def test_custom_loop_that_may_accumulate_is_not_refused(self) -> None:
        with pytest.raises(ValueError, match="Tried to step 8 times"):
            run_custom_loop(ParamSchedulerHook(self.settings(7)))

    @pytest.mark.parametrize("entry", ["check", "fit"])
    def test_scheduler_is_built_and_stepped_on_a_copy_before_training(self, entry: str) -> None:
        trainer = make_trainer(hook := ParamSchedulerHook(self.settings(7)))
        with pytest.raises(ConfigError, match="^hook 'param_scheduler' .*: step 8 .*and the run needs 8"):
            getattr(trainer, entry)()
        assert {**trainer.optimizer.param_groups[0], "params": None} == {
            **trainer.optimizer.defaults,
            "lr": 1.0,
            "params": None,
        }
        assert hook.state_dict() == {"schedulers": []}

    def test_settings_that_the_scheduler_refuses_are_an_error_before_training(self) -> None:
        hook = ParamSchedulerHook(schedulers={"type": "OneCycleLR", "max_lr": 1.0})
        with pytest.raises(ConfigError, match="schedulers: OneCycleLR cannot be built: ValueError: You must define"):
            make_trainer(hook).check()

    @pytest.mark.parametrize("optimizer", [None, "b"])
    def test_scheduler_of_several_optimizers_requires_a_name(self, optimizer: str | None) -> None:
        optimizers = {name: torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0) for name in "ab"}
        hook = ParamSchedulerHook(schedulers={**HALVE, "optimizer": optimizer})
        context = HookBus([recorder := RateRecorder(), hook]).run(optimizer=optimizers, epochs=1)
        if optimizer is None:
            with pytest.raises(ConfigError, match="several optimizers, got a, b. Set `optimizer` to one of them"):
                context.__enter__()
            assert recorder.rates == []
        else:
            with context:
                pass


class TestAccumulation:
    def test_scheduler_is_stepped_per_accumulated_optimizer_step(self) -> None:
        recorder = run_trainer(ParamSchedulerHook(schedulers=HALVE, interval="step"), accumulate=2, epochs=1)[1]

        assert recorder.rates == [1.0, 0.5, 0.5, 0.25]

    def test_each_iteration_is_a_step_without_an_optimizer(self) -> None:
        other = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
        other.step()
        bus = HookBus([ParamSchedulerHook(schedulers={**HALVE, "optimizer": "other"}, interval="step")])

        class OptimizerProvider(Hook):
            priority = 0

            def before_run(self, run: Run) -> None:
                run.provide("other", other)

        bus.register(OptimizerProvider())
        with bus.run():
            for i in range(3):
                bus.emit("before_train_iter", batch_idx=i)
                other.step()
                bus.emit("after_train_iter", batch_idx=i)

        assert other.param_groups[0]["lr"] == 0.125


class TestMetrics:
    def test_plateau_scheduler_is_stepped_with_the_validation_loss(self) -> None:
        scores = [{"loss": value} for value in (1.0, 2.0, 0.5, 3.0)]
        recorder = run_custom_loop(ParamSchedulerHook(schedulers=PLATEAU), scores=scores, epochs=4)[1]

        assert recorder.at_epochs == [1.0, 0.5, 0.5, 0.25]

    def test_monitored_metric_can_be_configured(self) -> None:
        settings = {**PLATEAU, "mode": "max", "monitor": "accuracy"}
        scores = [{"accuracy": value} for value in (0.5, 0.4)]

        assert run_custom_loop(ParamSchedulerHook(schedulers=settings), scores=scores)[1].at_epochs == [1.0, 0.5]

    def test_missing_metric_is_one_warning_with_the_available_names(self, caplog: pytest.LogCaptureFixture) -> None:
        recorder = run_custom_loop(ParamSchedulerHook(schedulers=PLATEAU), scores=[{"acc": 0.5}] * 2)[1]

        message = "Unknown metric 'val/loss'. Available: val/acc. Set `monitor`."
        expected = f"param_scheduler: a scheduler is not stepped without its metric. {message}"
        assert caplog.messages.count(expected) == 1
        assert recorder.at_epochs == [1.0, 1.0]

    @pytest.mark.parametrize(("scores", "count"), [(None, 1), ([{"loss": 0.5}] * 2, 0)])
    def test_custom_loop_without_validation_is_one_warning(
        self, caplog: pytest.LogCaptureFixture, scores: Any, count: int
    ) -> None:
        recorder = run_custom_loop(ParamSchedulerHook(schedulers=PLATEAU), scores=scores)[1]

        message = "param_scheduler: no validation provided 'val/loss'; its scheduler was never stepped."
        assert caplog.messages.count(message) == count
        assert recorder.at_epochs[0] == 1.0

    @pytest.mark.parametrize("kind", ["ReduceLROnPlateau", f"{__name__}:build_plateau"])
    @pytest.mark.parametrize("entry", ["check", "fit"])
    def test_missing_validation_of_a_trainer_is_an_error(self, kind: str, entry: str) -> None:
        hook = ParamSchedulerHook(schedulers={**PLATEAU, "type": kind})
        with pytest.raises(ConfigError, match="requires 'val/loss' of a validation, but the run has no validation"):
            getattr(make_trainer(hook, RateRecorder()), entry)()

    def test_monitored_metric_of_a_function_is_compared_with_the_results(self) -> None:
        def step(model: nn.Module, batch: torch.Tensor) -> dict[str, Any]:
            return {"loss": loss(model, batch)} if model.training else {}

        hook = ParamSchedulerHook(schedulers={"type": f"{__name__}:build_plateau"})
        with pytest.raises(ConfigError, match="^hook 'param_scheduler' .*: Unknown metric 'val/loss'"):
            make_trainer(hook, scores=[0.0], metrics={}, step_fn=step).check()

    def test_results_that_a_custom_loop_emits_are_passed_to_the_scheduler(self) -> None:
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        bus = HookBus([ParamSchedulerHook(schedulers=PLATEAU)])
        with bus.run(model=model, optimizer=optimizer, epochs=2) as run:
            for epoch in run.epochs():
                bus.emit("before_val")
                bus.emit("after_val", metrics=Metrics({"val/loss": 1.0 + epoch}))
        assert optimizer.param_groups[0]["lr"] == 0.5

    @pytest.mark.parametrize(
        ("scheduler", "metrics"),
        [
            (HALVE, []),
            (PLATEAU, ["val/loss"]),
            ({**PLATEAU, "monitor": "accuracy"}, ["accuracy"]),
            ({**PLATEAU, "type": "torch.optim.lr_scheduler.ReduceLROnPlateau"}, ["val/loss"]),
            ({"type": "Unknown"}, []),
        ],
    )
    def test_monitored_metric_is_required(self, scheduler: dict[str, Any], metrics: list[str]) -> None:
        assert ParamSchedulerHook(schedulers=scheduler).required_metrics == metrics

    def test_sanity_check_validation_does_not_step_a_scheduler(self) -> None:
        class InitialValidation(Hook):
            def before_train(self, run: Run) -> None:
                run.request_validation()

        scores = [{"loss": value} for value in (0.1, 1.0, 0.9)]
        recorder = run_custom_loop(InitialValidation(), ParamSchedulerHook(schedulers=PLATEAU), scores=scores)[1]

        assert recorder.at_epochs == [1.0, 1.0]


class TestOwnership:
    def test_trainer_and_hook_step_their_own_schedulers(self) -> None:
        recorder = run_trainer(
            ParamSchedulerHook(schedulers={**HALVE, "parameter": "momentum"}), scheduler=lambda o: ExponentialLR(o, 0.1)
        )[1]

        assert recorder.at_epochs == pytest.approx([0.1, 0.01])
        assert recorder.momenta[-1] == 0.4

    def test_one_scheduler_for_trainer_and_hook_is_an_error(self) -> None:
        message = r"the Trainer already steps its scheduler \(ExponentialLR\), so it would be stepped twice"
        with pytest.raises(ConfigError, match=message):
            run_trainer(ParamSchedulerHook(), scheduler=lambda o: ExponentialLR(o, 0.1))
        made: list[Any] = []

        class LateConfigHook(ParamSchedulerHook):
            def before_run(self, run: Run) -> None:
                self._config = self.Config(schedulers=[run.scheduler])
                super().before_run(run)

        with pytest.raises(ConfigError, match=message):
            run_trainer(LateConfigHook(), scheduler=lambda o: made.append(o) or ExponentialLR(o, 0.1))

    def test_scheduler_of_a_custom_loop_is_stepped_by_the_hook(self) -> None:
        recorder = run_custom_loop(ParamSchedulerHook(), scheduler=lambda o: ExponentialLR(o, 0.1))[1]

        assert recorder.at_epochs == pytest.approx([0.1, 0.01])

    def test_scheduler_object_is_stepped_and_saved_by_the_hook(self) -> None:
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
        hook = ParamSchedulerHook(
            schedulers=[ExponentialLR(optimizer, 0.5), {"scheduler": ReduceLROnPlateau(optimizer)}]
        )
        optimizer.step()
        run_custom_loop(hook, scores=[{"loss": 1.0}] * 2)

        assert optimizer.param_groups[0]["lr"] == 0.25
        assert [state["last_epoch"] for state in hook.state_dict()["schedulers"]] == [2, 2]

    @pytest.mark.parametrize("loop", [run_trainer, run_custom_loop])
    def test_missing_scheduler_is_an_error(self, loop: Any) -> None:
        with pytest.raises(ConfigError, match=r"there is no scheduler to step\. Set `schedulers`"):
            loop(ParamSchedulerHook())

    def test_second_training_continues_the_schedule(self) -> None:
        hook = ParamSchedulerHook(schedulers=HALVE)
        _, recorder = run_trainer(hook, epochs=1)
        hook.run.trainer.fit(epochs=3)

        assert recorder.at_epochs == [0.5, 0.25, 0.125]


class TestTwoHooks:
    @pytest.mark.parametrize("other", [HALVE, PLATEAU], ids=["same type", "other type"])
    def test_schedulers_of_one_hyperparameter_in_two_hooks_are_an_error(self, other: Any) -> None:
        with pytest.raises(ConfigError, match=r"hooks 'a' and 'b' schedule the same hyperparameter of the same optim"):
            run_trainer(ParamSchedulerHook(name="b", schedulers=HALVE), ParamSchedulerHook(name="a", schedulers=other))

    def test_scheduler_object_counts_as_one_of_its_optimizer(self) -> None:
        def loop() -> None:
            model = nn.Linear(1, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
            hooks = [ParamSchedulerHook(name="a", schedulers=HALVE), ParamSchedulerHook(name="b")]
            with HookBus(hooks).run(model=model, optimizer=optimizer, scheduler=ExponentialLR(optimizer, 0.5)):
                pass

        with pytest.raises(ConfigError, match="hooks 'a' and 'b' schedule the same hyperparameter"):
            loop()

    def test_schedulers_of_different_hyperparameters_are_stepped(self) -> None:
        hooks = [
            ParamSchedulerHook(name="lr", schedulers=HALVE),
            ParamSchedulerHook(name="momentum", schedulers={**HALVE, "parameter": "momentum"}),
        ]
        recorder = run_trainer(*hooks, epochs=2)[1]

        assert recorder.rates == [1.0] * 4 + [0.5] * 4
        assert recorder.momenta == [0.8] * 4 + [0.4] * 4


def test_length_of_a_scheduler_is_checked_against_the_fewest_steps_of_a_schedule() -> None:
    cycle = {"type": "OneCycleLR", "max_lr": 1.0, "total_steps": 6, "interval": "step", "cycle_momentum": False}
    # 4 steps in the first epoch and 2 in the second.
    run, recorder = run_trainer(ParamSchedulerHook(schedulers=cycle), AccumulationHook(schedule={1: 1, 2: 2}), epochs=2)

    assert run.steps_done == 6
    assert len(recorder.rates) == 8


def test_schedulers_of_the_learning_rate_follow_its_scaling_and_those_of_the_momentum_do_not() -> None:
    class Scale(Hook):
        def before_train(self, run: Run) -> None:
            run.scale_learning_rates(4.0)

    halving = {"type": "ExponentialLR", "gamma": 0.5, "interval": "step"}
    hook = ParamSchedulerHook(schedulers=[halving, {**halving, "parameter": "momentum"}])
    optimizer = torch.optim.SGD([weight := nn.Parameter(torch.ones(1))], lr=0.5, momentum=0.5)
    bus, values = HookBus([Scale(), hook]), []
    with bus.run(optimizer=optimizer, iterations=2):
        for _ in range(2):
            bus.emit("before_train_iter")
            weight.grad = torch.zeros(1)
            values.append((optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["momentum"]))
            optimizer.step()
            bus.emit("after_train_iter")
    assert values == [(2.0, 0.5), (1.0, 0.25)]
    assert [scheduler.base_lrs for scheduler in hook.lr_schedulers] == [[2.0]]
