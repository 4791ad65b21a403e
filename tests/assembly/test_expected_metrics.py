"""Which results validations will give, told from one batch of each loader."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

from hookbus import Hook, hookimpl
from hookbus.errors import ConfigError, HookbusError, RequestError
from hookbus.loop import Trainer
from tests import toys


class Reader(Hook):
    """Reads metrics after each validation."""

    def __init__(self, *needs: str) -> None:
        super().__init__()
        self._needs = needs

    @property
    def needs_metrics(self) -> Collection[str]:
        return self._needs


class Giver(Hook):
    """Adds to the results of a validation."""

    def __init__(self, *gives: str, anything: bool = False) -> None:
        super().__init__()
        self._gives = None if anything else gives

    @property
    def gives_metrics(self) -> Collection[str] | None:
        return self._gives

    def after_val_iter(self, run: Any) -> None:
        run.log(dice=0.5)


class Keeper(Hook):
    @property
    def keeps_best_of(self) -> Mapping[str, Any]:
        return {"f1": "greater"}


class Own(Hook):
    schedules_validation = True

    @property
    def validates_with(self) -> Any:
        return lambda run: {"anything": 1.0}


def trainer(*hooks: object, **options: Any) -> Trainer:
    return toys.trainer(*hooks, **{"val_loader": toys.pairs(1), "metrics": ["accuracy"], "epochs": 1, **options})


def refused(trainer: Trainer) -> str:
    with pytest.raises(HookbusError) as caught:
        trainer.check()
    return str(caught.value)


class TestWhatIsThere:
    @pytest.mark.parametrize("name", ["accuracy", "val_accuracy", "val/accuracy", "loss", "val_loss"])
    def test_it_may_be_called_in_any_spelling(self, name: str) -> None:
        trainer(Reader(name)).check()

    def test_what_a_model_returns_besides_its_output_is_there(self) -> None:
        class Telling(nn.Linear):
            def forward(self, x: Any, y: Any = None) -> Any:
                output = super().forward(x)
                return {"output": output, "loss": nn.functional.cross_entropy(output, y), "norm": x.norm()}

        trainer(Reader("val/norm"), model=Telling(4, 2), loss_fn=None).check()

    def test_a_score_of_several_results_gives_each_of_them(self) -> None:
        class Pair:
            def update(self, outputs: Any, targets: Any) -> None: ...
            def reset(self) -> None: ...
            def compute(self) -> Any:
                return {"precision": 1.0, "recall": 0.5}

        trainer(Reader("precision", "val/recall"), metrics={"pair": Pair()}).check()

    def test_a_score_that_cannot_judge_one_batch_is_there(self) -> None:
        class Patient:
            def update(self, outputs: Any, targets: Any) -> None: ...
            def reset(self) -> None: ...
            def compute(self) -> Any:
                raise ValueError("needs two classes")

        trainer(Reader("auc"), metrics={"auc": Patient()}).check()

    def test_a_training_finds_what_the_check_has_found(self) -> None:
        class Reading(Reader):
            def after_val(self, metrics: Any) -> None:
                self.read = [metrics[name] for name in self._needs]

        hook = Reading("val_loss", "accuracy", "dice")
        trained = trainer(hook, Giver("dice"))
        trained.check()
        trained.fit()
        assert len(hook.read) == 3


class TestWhatIsNot:
    def test_a_wrong_name_is_told_with_a_near_one_and_all_there_are(self) -> None:
        assert refused(trainer(Reader("acuracy"))) == (
            f"hook 'reader' (module {__name__}): There is no metric 'acuracy'. "
            "Did you mean 'accuracy'? Available: val/accuracy, val/loss."
        )

    def test_all_wrong_names_of_all_hooks_are_told(self) -> None:
        class Second(Reader):
            pass

        lines = refused(trainer(Reader("bleu", "rouge"), Second("wer"))).splitlines()
        assert [line.partition("metric ")[2].partition(".")[0] for line in lines] == ["'bleu'", "'rouge'", "'wer'"]

    def test_a_name_that_means_two_things_is_told(self) -> None:
        loaders = {"near": toys.pairs(1), "far": toys.pairs(1)}
        assert "can mean val/far/accuracy or val/near/accuracy: write the full name" in refused(
            trainer(Reader("accuracy"), val_loader=loaders)
        )
        trainer(Reader("val/far/accuracy", "near/loss"), val_loader=loaders).check()

    def test_results_of_training_are_not_those_of_a_validation(self) -> None:
        assert "There is no metric 'train/loss'." in refused(trainer(Reader("train/loss")))

    def test_whose_best_is_to_be_kept_has_to_be_there_as_well(self) -> None:
        told = refused(trainer(Keeper()))
        assert f"hook 'keeper' (module {__name__}): There is no metric 'f1'." in told

    def test_without_a_validation_nothing_can_be_read(self) -> None:
        with pytest.raises(RequestError, match="^hook 'reader' .* reads 'accuracy', 'loss' in the results of valid"):
            trainer(Reader("accuracy", "loss"), val_loader=None).check()
        trainer(Reader(), val_loader=None).check()

    def test_what_a_scheduler_is_stepped_with(self) -> None:
        model = toys.net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        plateau = ReduceLROnPlateau(optimizer)
        stepped = {"model": model, "optimizer": optimizer, "scheduler": plateau}
        trainer(**stepped).check()
        assert refused(trainer(**stepped, scheduler_monitor="acuracy")).startswith(
            "scheduler: There is no metric 'acuracy'. Did you mean 'accuracy'?"
        )


class TestWhatCannotBeTold:
    """Where something else may be among the results, nothing is called wrong."""

    def test_a_hook_says_what_it_adds(self) -> None:
        assert "There is no metric 'dice'." in refused(trainer(Reader("dice"), Giver()))
        trainer(Reader("dice", "val/dice"), Giver("dice")).check()
        assert "Did you mean 'dice'? Available: val/accuracy, val/dice, val/loss." in refused(
            trainer(Reader("dise"), Giver("dice"))
        )

    def test_a_hook_may_add_anything(self) -> None:
        trainer(Reader("whatever"), Giver(anything=True)).check()

    def test_a_hook_may_validate_by_itself(self) -> None:
        trainer(Reader("anything"), Own()).check()
        trainer(Reader("anything"), Own(), val_loader=None).check()

    def test_a_hook_may_judge_a_batch_in_its_own_way(self) -> None:
        class Stepping(Hook):
            @hookimpl
            def val_step(self, run: Any, batch: Any) -> Any:
                return {"bleu": torch.tensor(0.5)}

        trainer(Reader("bleu"), Stepping()).check()

    @pytest.mark.parametrize(("point", "known"), [("after_val_iter", False), ("before_train", True)])
    def test_a_plain_function_may_add_to_what_it_listens_at(self, point: str, known: bool) -> None:
        made = trainer(Reader("bleu"))
        made.bus.on(point)(lambda run: None)
        if known:
            assert "There is no metric 'bleu'." in refused(made)
        else:
            made.check()

    def test_a_loader_that_cannot_be_read_is_told_alone(self) -> None:
        assert refused(trainer(Reader("acuracy"), val_loader=[])) == "The val_loader gives no batch."


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
    def test_one_that_does_not_last_is_told(self, total: int, options: dict[str, Any]) -> None:
        self.made(total, **options).check()
        with pytest.raises(
            ConfigError, match=f"^scheduler: the scheduler fails at its step {total}: ValueError: Tried"
        ):
            self.made(total - 1, **options).check()

    def test_a_check_steps_a_copy(self) -> None:
        made = self.made(4, epochs=4)
        before = made.scheduler.scheduler.state_dict().copy(), made.optimizer.param_groups[0]["lr"]  # type: ignore[union-attr]
        made.check()
        assert (made.scheduler.scheduler.state_dict(), made.optimizer.param_groups[0]["lr"]) == before  # type: ignore[union-attr]

    def test_one_of_a_user_that_has_no_optimizer_is_stepped_as_well(self) -> None:
        class Mine:
            def step(self) -> None:
                raise RuntimeError("never")

        with pytest.raises(ConfigError, match="scheduler fails at its step 1: RuntimeError: never"):
            trainer(scheduler=Mine()).check()


def test_a_scheduler_that_is_fine_stays_fine() -> None:
    model = toys.net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    made = trainer(model=model, optimizer=optimizer, scheduler=StepLR(optimizer, 1, 0.5), epochs=3)
    made.check()
    made.fit()
    assert optimizer.param_groups[0]["lr"] == 0.1 * 0.5**3
