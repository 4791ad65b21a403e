"""Tests of the prediction of validation results from one batch of each loader."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

from hookbus import Hook, hookimpl
from hookbus.errors import ConfigError, HookbusError
from hookbus.trainer.trainer import Trainer
from tests import toys


class Reader(Hook):
    """Hook that requires metrics of validations."""

    def __init__(self, *needs: str) -> None:
        super().__init__()
        self._needs = needs

    @property
    def required_metrics(self) -> Collection[str]:
        return self._needs


class Giver(Hook):
    """Hook that adds results to a validation."""

    def __init__(self, *gives: str, anything: bool = False) -> None:
        super().__init__()
        self._gives = None if anything else gives

    @property
    def provided_metrics(self) -> Collection[str] | None:
        return self._gives

    def after_val_iter(self, run: Any) -> None:
        run.log(dice=0.5)


class Keeper(Hook):
    @property
    def best_metrics(self) -> Mapping[str, Any]:
        return {"f1": "greater"}


class Own(Hook):
    schedules_validation = True

    @property
    def validation_fn(self) -> Any:
        return lambda run: {"anything": 1.0}


def trainer(*hooks: object, **options: Any) -> Trainer:
    return toys.trainer(*hooks, **{"val_loader": toys.pairs(1), "metrics": ["accuracy"], "epochs": 1, **options})


def get_error(trainer: Trainer) -> str:
    with pytest.raises(HookbusError) as caught:
        trainer.check()
    return str(caught.value)


class TestAvailableMetrics:
    @pytest.mark.parametrize("name", ["accuracy", "val_accuracy", "val/accuracy", "loss", "val_loss"])
    def test_metric_name_is_accepted_in_every_form(self, name: str) -> None:
        trainer(Reader(name)).check()

    def test_additional_model_outputs_are_metrics(self) -> None:
        class WithNorm(nn.Linear):
            def forward(self, x: Any, y: Any = None) -> Any:
                output = super().forward(x)
                return {"output": output, "loss": nn.functional.cross_entropy(output, y), "norm": x.norm()}

        trainer(Reader("val/norm"), model=WithNorm(4, 2), loss_fn=None).check()

    def test_metric_with_several_results_provides_all_of_them(self) -> None:
        class Pair:
            def update(self, outputs: Any, targets: Any) -> None: ...
            def reset(self) -> None: ...
            def compute(self) -> Any:
                return {"precision": 1.0, "recall": 0.5}

        trainer(Reader("precision", "val/recall"), metrics={"pair": Pair()}).check()

    def test_metric_that_fails_on_one_batch_is_expected(self) -> None:
        class Patient:
            def update(self, outputs: Any, targets: Any) -> None: ...
            def reset(self) -> None: ...
            def compute(self) -> Any:
                raise ValueError("needs two classes")

        trainer(Reader("auc"), metrics={"auc": Patient()}).check()

    def test_training_provides_the_expected_metrics(self) -> None:
        class Reading(Reader):
            def after_val(self, metrics: Any) -> None:
                self.read = [metrics[name] for name in self._needs]

        hook = Reading("val_loss", "accuracy", "dice")
        trained = trainer(hook, Giver("dice"))
        trained.check()
        trained.fit()
        assert len(hook.read) == 3


class TestMissingMetrics:
    def test_unknown_metric_lists_close_matches_and_all_names(self) -> None:
        assert get_error(trainer(Reader("acuracy"))) == (
            f"hook 'reader' (module {__name__}): Unknown metric 'acuracy'. "
            "Did you mean 'accuracy'? Available: val/accuracy, val/loss."
        )

    def test_unknown_metrics_of_all_hooks_are_listed(self) -> None:
        class Second(Reader):
            pass

        lines = get_error(trainer(Reader("bleu", "rouge"), Second("wer"))).splitlines()
        assert [line.partition("metric ")[2].partition(".")[0] for line in lines] == ["'bleu'", "'rouge'", "'wer'"]

    def test_ambiguous_metric_is_an_error(self) -> None:
        loaders = {"near": toys.pairs(1), "far": toys.pairs(1)}
        assert "Ambiguous metric 'accuracy': val/far/accuracy or val/near/accuracy. Use the full name" in get_error(
            trainer(Reader("accuracy"), val_loader=loaders)
        )
        trainer(Reader("val/far/accuracy", "near/loss"), val_loader=loaders).check()

    def test_training_metrics_are_not_validation_results(self) -> None:
        assert "Unknown metric 'train/loss'." in get_error(trainer(Reader("train/loss")))

    def test_metric_of_a_best_checkpoint_is_required(self) -> None:
        message = get_error(trainer(Keeper()))
        assert f"hook 'keeper' (module {__name__}): Unknown metric 'f1'." in message

    def test_required_metrics_require_a_validation(self) -> None:
        with pytest.raises(ConfigError, match="^hook 'reader' .* requires 'accuracy', 'loss' of a validation"):
            trainer(Reader("accuracy", "loss"), val_loader=None).check()
        trainer(Reader(), val_loader=None).check()

    def test_metric_of_a_scheduler_is_required(self) -> None:
        model = toys.net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        plateau = ReduceLROnPlateau(optimizer)
        stepped = {"model": model, "optimizer": optimizer, "scheduler": plateau}
        trainer(**stepped).check()
        assert get_error(trainer(**stepped, scheduler_monitor="acuracy")).startswith(
            "scheduler: Unknown metric 'acuracy'. Did you mean 'accuracy'?"
        )


class TestUndeclaredMetrics:
    """Unknown metrics are not an error if undeclared results are possible."""

    def test_declared_metrics_are_expected(self) -> None:
        assert "Unknown metric 'dice'." in get_error(trainer(Reader("dice"), Giver()))
        trainer(Reader("dice", "val/dice"), Giver("dice")).check()
        assert "Did you mean 'dice'? Available: val/accuracy, val/dice, val/loss." in get_error(
            trainer(Reader("dise"), Giver("dice"))
        )

    def test_hook_may_add_undeclared_metrics(self) -> None:
        trainer(Reader("whatever"), Giver(anything=True)).check()

    def test_hook_with_a_validation_may_return_any_metric(self) -> None:
        trainer(Reader("anything"), Own()).check()
        trainer(Reader("anything"), Own(), val_loader=None).check()

    def test_hook_with_a_val_step_may_return_any_metric(self) -> None:
        class Stepping(Hook):
            @hookimpl
            def val_step(self, run: Any, batch: Any) -> Any:
                return {"bleu": torch.tensor(0.5)}

        trainer(Reader("bleu"), Stepping()).check()

    @pytest.mark.parametrize(("point", "known"), [("after_val_iter", False), ("before_train", True)])
    def test_plain_listener_may_add_metrics_at_its_point(self, point: str, known: bool) -> None:
        made = trainer(Reader("bleu"))
        made.bus.on(point)(lambda run: None)
        if known:
            assert "Unknown metric 'bleu'." in get_error(made)
        else:
            made.check()

    def test_failing_loader_is_the_only_error(self) -> None:
        assert (
            get_error(trainer(Reader("acuracy"), val_loader=[]))
            == "The val_loader yields no batch. Pass a loader with at least one batch."
        )


class TestSchedulers:
    def made(self, total: int, **options: Any) -> Trainer:
        model = toys.net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=total)
        return trainer(model=model, optimizer=optimizer, scheduler=scheduler, **options)

    @pytest.mark.parametrize(
        ("total", "options"),
        [
            (4, {"epochs": 4}),
            (6, {"epochs": 2, "scheduler_interval": "step"}),  # 3 batches
            (3, {"epochs": 2, "scheduler_interval": "step", "accumulate": 2}),
            (7, {"epochs": None, "iterations": 7, "scheduler_interval": "step"}),
            (2, {"epochs": None, "iterations": 8}),
        ],
    )
    def test_scheduler_with_too_few_steps_is_an_error(self, total: int, options: dict[str, Any]) -> None:
        self.made(total, **options).check()
        with pytest.raises(ConfigError, match=f"^scheduler: step {total} of the scheduler raised ValueError: Tried"):
            self.made(total - 1, **options).check()

    def test_check_does_not_change_the_scheduler(self) -> None:
        made = self.made(4, epochs=4)
        before = made.scheduler.scheduler.state_dict().copy(), made.optimizer.param_groups[0]["lr"]  # type: ignore[union-attr]
        made.check()
        assert (made.scheduler.scheduler.state_dict(), made.optimizer.param_groups[0]["lr"]) == before  # type: ignore[union-attr]

    def test_custom_scheduler_is_stepped(self) -> None:
        class Mine:
            def step(self) -> None:
                raise RuntimeError("never")

        with pytest.raises(ConfigError, match="step 1 of the scheduler raised RuntimeError: never"):
            trainer(scheduler=Mine()).check()


def test_check_does_not_change_the_learning_rate() -> None:
    model = toys.net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    made = trainer(model=model, optimizer=optimizer, scheduler=StepLR(optimizer, 1, 0.5), epochs=3)
    made.check()
    made.fit()
    assert optimizer.param_groups[0]["lr"] == 0.1 * 0.5**3
