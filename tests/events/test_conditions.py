"""Tests of conditions: functions of the run, and names of loaders."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn

from hookbus import Hook, HookBus, HookConfig, Run, Trainer, every, for_loader, hookimpl, where
from hookbus._events.schedules import Schedule
from hookbus.errors import ConfigError, HookbusError, RegistrationError

BATCH = (torch.ones(2, 2), torch.ones(2, 1))


def build_trainer(**settings: Any) -> Trainer:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"work_dir": None, "default_hooks": False, "epochs": 2, **settings}
    return Trainer(model, optimizer, nn.functional.mse_loss, [BATCH] * 4, **options)


def due_iterations(point: str, when: Any, **settings: Any) -> list[int]:
    """Train for 2 epochs of 4 iterations, and return the number of completed iterations at each call."""
    trainer, due = build_trainer(**settings), []
    trainer.bus.on(point, when=when)(lambda run: due.append(run.iters_done))
    trainer.fit()
    return due


class TestWhere:
    @pytest.mark.parametrize(
        ("point", "when", "due"),
        [
            ("after_train_iter", lambda run: run.iters_done in (2, 3), [2, 3]),
            ("after_train_iter", lambda runner: runner.epoch == 1, [5, 6, 7, 8]),
            ("after_train_iter", every(3) & where(lambda run: run.iters_done > 3), [6]),
            ("after_train_iter", every(4) | where(lambda run: run.iters_done == 1), [1, 4, 8]),
            ("after_train_iter", ~where(lambda run: run.iters_done < 7), [7, 8]),
            ("before_train_iter", lambda run: run.iters_done == 5, [5]),
            ("after_optimizer_step", lambda run: run.steps_done % 2 == 0, [1, 3, 5, 7]),
            ("after_epoch", lambda run: run.epochs_done == 2, [8]),
            ("before_train", lambda run: run.mode == "train", [0]),
            ("after_run", lambda run: run.outcome == "failed", []),
            ("before_val", lambda run: run.epoch == 1, [8]),
            ("log_scalars", lambda run: run.epoch == 0, [4]),  # the results of the first validation
        ],
    )
    def test_listener_is_called_where_the_function_returns_true(self, point: str, when: Any, due: list[int]) -> None:
        assert due_iterations(point, when, val_loader=[BATCH]) == due

    def test_function_is_called_only_where_the_other_schedule_may_be_due(self) -> None:
        calls: list[int] = []
        due_iterations("after_train_iter", every(4) & where(lambda run: calls.append(run.iters_done)))
        assert calls == [4, 8]

    def test_marker_and_setting_accept_a_function_of_the_run(self) -> None:
        class Marked(Hook):
            class Config(HookConfig):
                interval: int = 3

            def __init__(self, **settings: Any) -> None:
                super().__init__(**settings)
                self.due: list[int] = []

            @hookimpl(when=lambda config: every(config.interval))
            def after_train_iter(self, run: Run) -> None:
                self.due.append(run.iters_done)

        hooks = [Marked(name="a"), Marked(name="b", when=lambda run: run.iters_done == 5)]
        build_trainer(hooks=hooks).fit()
        assert [hook.due for hook in hooks] == [[3, 6], [5]]
        assert repr(hooks[1].config.when) == "where(<lambda>)"

    def test_exception_names_the_hook_and_the_point(self) -> None:
        with pytest.raises(AttributeError) as caught:
            due_iterations("after_train_iter", where(lambda run: run.nothing))
        note = caught.value.__notes__[0]
        assert note.startswith("Raised by when=where(<lambda>) of hook 'tests.events.test_conditions.")
        assert note.endswith("at after_train_iter.")

    @pytest.mark.parametrize("predicate", [None, 5, every(2)])
    def test_other_objects_are_refused(self, predicate: Any) -> None:
        with pytest.raises(ConfigError, match="where: expected a function of the run"):
            where(predicate)

    def test_function_of_something_else_is_refused(self) -> None:
        with pytest.raises(RegistrationError, match="a function of the run whose parameter is named `run`"):
            HookBus().on("after_train_iter", when=lambda batch: True)(lambda run: None)


LOADERS = {"clean": [BATCH] * 2, "noisy": [BATCH] * 3}


class TestForLoader:
    @pytest.mark.parametrize(
        ("point", "when", "names"),
        [
            ("before_val_epoch", for_loader("noisy"), ["noisy"] * 2),
            ("after_val_epoch", for_loader("clean", "noisy"), ["clean", "noisy"] * 2),
            ("before_val_iter", for_loader("clean"), ["clean"] * 4),
            ("after_val_iter", for_loader("noisy") & every(3), ["noisy"] * 2),
            ("after_val_epoch", ~for_loader("clean") & every(2), ["noisy"]),
        ],
    )
    def test_listener_is_called_for_the_named_loaders(self, point: str, when: Schedule, names: list[str]) -> None:
        trainer, seen = build_trainer(val_loader=LOADERS), []
        trainer.bus.on(point, when=when)(lambda dataloader_name: seen.append(dataloader_name))
        trainer.fit()
        assert seen == names

    def test_custom_loop_passes_the_name(self) -> None:
        bus, seen = HookBus(), []
        bus.on("after_val_iter", when=for_loader("b"))(lambda run, batch_idx: seen.append(batch_idx))
        with bus.run() as run:
            run.begin_validation()
            for name, length in (("a", 2), ("b", 3)):
                for i in range(length):
                    bus.emit("after_val_iter", batch_idx=i, batch=torch.ones(1), dataloader_name=name)
            run.end_validation()
        assert seen == [0, 1, 2]

    def test_loader_of_a_test(self) -> None:
        trainer, seen = build_trainer(test_loader=LOADERS), []
        trainer.bus.on("after_test_epoch", when=for_loader("noisy"))(lambda metrics: seen.append(sorted(metrics)))
        trainer.test()
        assert seen == [["test/noisy/loss"]]

    @pytest.mark.parametrize("point", ["after_train_iter", "before_val", "after_epoch"])
    def test_point_without_a_loader_is_refused_at_registration(self, point: str) -> None:
        with pytest.raises(RegistrationError, match=f"{point} belongs to no validation or test loader"):
            HookBus().on(point, when=every(2) & for_loader("clean"))(lambda run: None)

    @pytest.mark.parametrize(
        ("loader", "message"),
        [
            (LOADERS, "the run has no loader 'claen'. Did you mean 'clean'?"),
            ([BATCH], "the run has no loader 'claen'. Pass the loaders as a mapping"),
        ],
    )
    def test_unknown_name_is_refused_before_training(self, loader: Any, message: str) -> None:
        trainer = build_trainer(val_loader=loader)
        trainer.bus.on("after_val_iter", when=for_loader("claen"))(lambda run: None)
        with pytest.raises(HookbusError) as caught:
            trainer.fit()
        assert message in str(caught.value)

    @pytest.mark.parametrize("names", [(), (3,)])
    def test_other_names_are_refused(self, names: Any) -> None:
        with pytest.raises(ConfigError, match="for_loader: expected names of loaders"):
            for_loader(*names)


def test_conditions_are_never_reported_as_unreachable() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert due_iterations("after_train_iter", lambda run: False) == []
