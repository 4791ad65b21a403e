"""Who steps what, and when."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR, ReduceLROnPlateau

from hookbus import Hook, HookBus, Run, Trainer
from hookbus.errors import CheckpointError, ConfigError, HookWarning
from hookbus.testing import check_hook
from hookbus_schedule import ParamSchedulerHook

HALVE = {"type": "ExponentialLR", "gamma": 0.5}
PLATEAU = {"type": "ReduceLROnPlateau", "factor": 0.5, "patience": 0}


class Watch(Hook):
    """Notes rate and momentum at the end of each iteration, and the rate at the end of each epoch."""

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


def by_trainer(
    *hooks: Any, scores: list[float] | None = None, scheduler: Any = None, **options: Any
) -> tuple[Run, Watch]:
    """Epochs of four iterations with a rate of 1 and a momentum of 0.8."""
    model, watch = nn.Linear(1, 1), Watch()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.8)
    optimizer.param_groups[0]["lr"] = 1.0
    trainer = Trainer(
        model,
        optimizer,
        step_fn=loss,
        train_loader=[torch.zeros(1, 1)] * 4,
        val_loader=None if scores is None else [torch.zeros(1, 1)],
        scheduler=None if scheduler is None else scheduler(optimizer),
        metrics={} if scores is None else {"score": lambda output, target: 0.0},
        hooks=[*hooks, watch],
        default_hooks=False,
        work_dir=None,
        device="cpu",
        **{"epochs": 2, **options},
    )
    return trainer.fit(), watch


def by_hand(*hooks: Any, scores: list[Any] | None = None, epochs: int = 2, **options: Any) -> tuple[Run, Watch]:
    """The same as a loop of one's own; `scores` are the results of the validations."""
    model, watch = nn.Linear(1, 1), Watch()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.8)
    scheduler = options.pop("scheduler", None)
    left = iter(scores or ())
    if scores is not None:
        options["validate"] = lambda: next(left)
    bus = HookBus([*hooks, watch])
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
    return run, watch


@pytest.mark.parametrize(
    "settings", [HALVE, {**HALVE, "interval": "step"}, {**HALVE, "parameter": "momentum"}, PLATEAU]
)
def test_it_keeps_what_every_hook_promises(settings: dict[str, Any]) -> None:
    check_hook(ParamSchedulerHook, schedulers=[settings])


@pytest.mark.parametrize("loop", [by_trainer, by_hand])
class TestStepping:
    def test_is_per_epoch_unless_told_otherwise(self, loop: Any) -> None:
        watch = loop(ParamSchedulerHook(schedulers=HALVE))[1]

        assert watch.rates == [1.0] * 4 + [0.5] * 4
        assert watch.at_epochs == [0.5, 0.25]

    def test_may_be_per_update(self, loop: Any) -> None:
        for settings in ({"schedulers": {**HALVE, "interval": "step"}}, {"schedulers": HALVE, "interval": "step"}):
            assert loop(ParamSchedulerHook(settings), epochs=1)[1].rates == [0.5, 0.25, 0.125, 0.0625]

    def test_takes_several_at_once(self, loop: Any) -> None:
        schedulers = [HALVE, {**HALVE, "parameter": "momentum", "interval": "step"}]
        watch = loop(ParamSchedulerHook(schedulers=schedulers))[1]

        assert watch.at_epochs == [0.5, 0.25]
        assert watch.momenta == pytest.approx([0.8 / 2**i for i in range(1, 9)])

    def test_leaves_an_epoch_out_that_was_cut(self, loop: Any) -> None:
        class Stops(Hook):
            def after_train_iter(self, run: Run) -> None:
                if run.iters_done == 6:
                    run.request_stop("enough")

        assert loop(ParamSchedulerHook(schedulers=HALVE), Stops())[1].at_epochs == [0.5, 0.5]

    def test_goes_on_after_a_resume(self, loop: Any, kit: Any, tmp_path: Path) -> None:
        settings = {"schedulers": [HALVE, {**HALVE, "parameter": "momentum", "interval": "step"}]}
        whole = loop(ParamSchedulerHook(settings), epochs=3)[1]
        for at in (3, 4, 6):
            path = tmp_path / f"{at}.pth"
            loop(ParamSchedulerHook(settings), kit.SaveAt(path, at), epochs=3)
            rest = loop(ParamSchedulerHook(settings), epochs=3, resume=path)[1]

            assert rest.rates == whole.rates[at:]
            assert rest.momenta == whole.momenta[at:]

    def test_refuses_a_checkpoint_of_other_schedulers(self, loop: Any, kit: Any, tmp_path: Path) -> None:
        path = tmp_path / "saved.pth"
        loop(ParamSchedulerHook(schedulers=HALVE), kit.SaveAt(path, 1))

        with pytest.raises(CheckpointError, match="the checkpoint holds 1 schedulers, and there are 2 now"):
            loop(ParamSchedulerHook(schedulers=[HALVE, HALVE]), resume=path)


class TestAccumulation:
    def test_one_step_is_one_update(self) -> None:
        watch = by_trainer(ParamSchedulerHook(schedulers=HALVE, interval="step"), accumulate=2, epochs=1)[1]

        assert watch.rates == [1.0, 0.5, 0.5, 0.25]

    def test_without_an_optimizer_each_iteration_is_one(self) -> None:
        other = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
        other.step()
        bus = HookBus([ParamSchedulerHook(schedulers={**HALVE, "optimizer": "other"}, interval="step")])

        class Provides(Hook):
            priority = 0

            def before_run(self, run: Run) -> None:
                run.provide("other", other)

        bus.register(Provides())
        with bus.run():
            for i in range(3):
                bus.emit("before_train_iter", batch_idx=i)
                other.step()
                bus.emit("after_train_iter", batch_idx=i)

        assert other.param_groups[0]["lr"] == 0.125


class TestMetrics:
    def test_are_what_a_plateau_is_stepped_with(self) -> None:
        scores = [{"loss": value} for value in (1.0, 2.0, 0.5, 3.0)]
        watch = by_hand(ParamSchedulerHook(schedulers=PLATEAU), scores=scores, epochs=4)[1]

        assert watch.at_epochs == [1.0, 0.5, 0.5, 0.25]

    def test_may_be_others(self) -> None:
        settings = {**PLATEAU, "mode": "max", "monitor": "accuracy"}
        scores = [{"accuracy": value} for value in (0.5, 0.4)]

        assert by_hand(ParamSchedulerHook(schedulers=settings), scores=scores)[1].at_epochs == [1.0, 0.5]

    def test_that_are_not_there_are_one_warning_with_the_names_there_are(self) -> None:
        with pytest.warns(
            HookWarning, match=r"There is no metric 'val/loss'\. Available: val/acc\. Set monitor"
        ) as warned:
            watch = by_hand(ParamSchedulerHook(schedulers=PLATEAU), scores=[{"acc": 0.5}] * 2)[1]

        assert len(warned) == 1
        assert watch.at_epochs == [1.0, 1.0]

    @pytest.mark.parametrize("loop", [by_trainer, by_hand])
    def test_without_a_validation_are_an_error_at_the_start(self, loop: Any) -> None:
        with pytest.raises(
            ConfigError, match="steps a scheduler with val/loss after each validation, and there is none"
        ):
            loop(ParamSchedulerHook(schedulers=PLATEAU))

    def test_of_the_validation_before_training_count_for_nothing(self) -> None:
        class First(Hook):
            def before_train(self, run: Run) -> None:
                run.request_validation()

        scores = [{"loss": value} for value in (0.1, 1.0, 0.9)]
        watch = by_hand(First(), ParamSchedulerHook(schedulers=PLATEAU), scores=scores)[1]

        assert watch.at_epochs == [1.0, 1.0]


class TestOwnership:
    def test_the_trainer_steps_its_own_and_the_hook_its_own(self) -> None:
        watch = by_trainer(
            ParamSchedulerHook(schedulers={**HALVE, "parameter": "momentum"}), scheduler=lambda o: ExponentialLR(o, 0.1)
        )[1]

        assert watch.at_epochs == pytest.approx([0.1, 0.01])
        assert watch.momenta[-1] == 0.4

    def test_one_scheduler_for_both_is_refused(self) -> None:
        message = r"the Trainer steps its scheduler \(ExponentialLR\) itself, so it would be stepped twice"
        with pytest.raises(ConfigError, match=message):
            by_trainer(ParamSchedulerHook(), scheduler=lambda o: ExponentialLR(o, 0.1))
        made: list[Any] = []

        class Late(ParamSchedulerHook):
            def before_run(self, run: Run) -> None:
                self._config = self.Config(schedulers=[run.scheduler])
                super().before_run(run)

        with pytest.raises(ConfigError, match=message):
            by_trainer(Late(), scheduler=lambda o: made.append(o) or ExponentialLR(o, 0.1))

    def test_a_scheduler_of_a_loop_of_ones_own_is_stepped_by_the_hook(self) -> None:
        watch = by_hand(ParamSchedulerHook(), scheduler=lambda o: ExponentialLR(o, 0.1))[1]

        assert watch.at_epochs == pytest.approx([0.1, 0.01])

    def test_an_object_that_is_given_to_the_hook_is_stepped_and_kept_by_it(self) -> None:
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
        hook = ParamSchedulerHook(
            schedulers=[ExponentialLR(optimizer, 0.5), {"scheduler": ReduceLROnPlateau(optimizer)}]
        )
        optimizer.step()
        by_hand(hook, scores=[{"loss": 1.0}] * 2)

        assert optimizer.param_groups[0]["lr"] == 0.25
        assert [state["last_epoch"] for state in hook.state_dict()["schedulers"]] == [2, 2]

    @pytest.mark.parametrize("loop", [by_trainer, by_hand])
    def test_nothing_to_step_is_an_error(self, loop: Any) -> None:
        with pytest.raises(ConfigError, match="there is nothing to step: say schedulers, or give scheduler="):
            loop(ParamSchedulerHook())

    def test_a_second_training_goes_on(self) -> None:
        hook = ParamSchedulerHook(schedulers=HALVE)
        _, watch = by_trainer(hook, epochs=1)
        hook.run.trainer.fit(epochs=3)

        assert watch.at_epochs == [0.5, 0.25, 0.125]
