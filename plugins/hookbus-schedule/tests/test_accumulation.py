from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hookbus import Hook, HookBus, Run, Trainer
from hookbus.errors import ConfigError
from hookbus.testing import check_hook, fake_training
from hookbus_schedule import AccumulationHook

BATCHES = [torch.full((1, 1), float(value)) for value in (1, 2, 3)]


class StepRecorder(Hook):
    def __init__(self) -> None:
        super().__init__()
        self.steps_done: list[int] = []
        self.weights: list[float] = []

    def after_train_iter(self, run: Run, model: Any) -> None:
        self.steps_done.append(run.steps_done)
        self.weights.append(float(model.weight.detach()))


def train(*hooks: Any, resume: Any = "never", **options: Any) -> StepRecorder:
    """Train a weight from which each optimizer step subtracts the mean of the accumulated batches."""
    model, recorder = nn.Linear(1, 1, bias=False), StepRecorder()
    nn.init.zeros_(model.weight)
    Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=1.0),
        step_fn=lambda model, batch: model(batch).mean(),
        train_loader=BATCHES,
        hooks=[*hooks, recorder],
        default_hooks=False,
        work_dir=None,
        resume=resume,
        device="cpu",
        **{"epochs": 3, **options},
    ).fit()
    return recorder


@pytest.mark.slow
def test_hook_passes_the_conformance_checks() -> None:
    check_hook(AccumulationHook, schedule={1: 1, 2: 3})


class TestSchedule:
    def test_accumulation_changes_at_the_scheduled_epochs(self) -> None:
        recorder = train(AccumulationHook(schedule={1: 1, 2: 3, 3: 1}))

        assert recorder.steps_done == [1, 2, 3, 3, 3, 4, 5, 6, 7]
        assert recorder.weights == [-1, -3, -6, -6, -6, -8, -9, -11, -14]

    def test_accumulation_in_progress_is_completed_before_a_change(self) -> None:
        recorder = train(AccumulationHook(schedule={1: 2, 2: 1}), epochs=2)

        assert recorder.steps_done == [0, 1, 1, 2, 3, 4]
        assert recorder.weights == [0, -1.5, -1.5, -3.5, -5.5, -8.5]

    def test_schedule_can_count_iterations(self) -> None:
        recorder = train(AccumulationHook(schedule={1: 1, 3: 2}, unit="iter"), epochs=2)

        assert recorder.steps_done == [1, 2, 2, 3, 3, 4]

    def test_setting_of_the_trainer_applies_before_the_schedule(self) -> None:
        assert train(AccumulationHook(schedule={2: 1}), accumulate=3, epochs=2).steps_done == [0, 0, 1, 2, 3, 4]

    @pytest.mark.parametrize(("begin", "count"), [(1, 1), (2, 0)])
    def test_setting_of_the_trainer_without_effect_is_one_warning(
        self, begin: int, count: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        train(AccumulationHook(schedule={begin: 1}), accumulate=3)
        warning = "hook 'accumulation': its schedule replaces `accumulate=3` of the Trainer from the start."
        assert caplog.messages.count(f"{warning} Remove one of them.") == count

    def test_service_provides_the_number_to_custom_loops(self) -> None:
        bus, numbers = HookBus([AccumulationHook(schedule={1: 1, 3: 4}, unit="iter")]), []
        with bus.run() as run:
            for i in range(4):
                bus.emit("before_train_iter", batch_idx=i)
                numbers.append(run.require("accumulate"))
                bus.emit("after_train_iter", batch_idx=i)

        assert numbers == [1, 1, 4, 4]


class TestResume:
    @pytest.mark.parametrize("at", [1, 3, 4, 5])
    def test_accumulation_in_progress_is_completed_after_a_resume(self, kit: Any, tmp_path: Path, at: int) -> None:
        path, schedule = tmp_path / "saved.pth", {1: 2, 2: 3}
        uninterrupted = train(AccumulationHook(schedule=schedule))
        train(AccumulationHook(schedule=schedule), kit.SaveAt(path, at))
        resumed = train(AccumulationHook(schedule=schedule), resume=path)

        assert resumed.steps_done == uninterrupted.steps_done[at:]
        assert resumed.weights == uninterrupted.weights[at:]


def test_two_hooks_are_an_error() -> None:
    hooks = [AccumulationHook(name=name, schedule={1: 2}) for name in ("b", "a")]
    with pytest.raises(ConfigError, match=r"hook '[ab]' also sets the number of micro-batches per optimizer step"):
        fake_training(hooks)


def test_scheduler_may_be_as_short_as_the_scheduled_steps() -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    # 3 steps in epoch 1, and 1 step in epoch 2.
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=5)
    run = Trainer(
        model,
        optimizer,
        step_fn=lambda model, batch: model(batch).mean(),
        train_loader=BATCHES,
        scheduler=scheduler,
        scheduler_interval="step",
        hooks=[AccumulationHook(schedule={1: 1, 2: 3})],
        default_hooks=False,
        work_dir=None,
        device="cpu",
        epochs=2,
    ).fit()

    assert (run.outcome, run.steps_done, scheduler.last_epoch) == ("finished", 4, 4)
