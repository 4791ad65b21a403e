from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hookbus import Hook, HookBus, Run, Trainer
from hookbus.testing import check_hook
from hookbus_schedule import AccumulationHook

BATCHES = [torch.full((1, 1), float(value)) for value in (1, 2, 3)]


class Steps(Hook):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []
        self.weights: list[float] = []

    def after_train_iter(self, run: Run, model: Any) -> None:
        self.seen.append(run.steps_done)
        self.weights.append(float(model.weight.detach()))


def train(*hooks: Any, resume: Any = "never", **options: Any) -> Steps:
    """A weight from which the mean of the group's batches is subtracted at each update."""
    model, steps = nn.Linear(1, 1, bias=False), Steps()
    nn.init.zeros_(model.weight)
    Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=1.0),
        step_fn=lambda model, batch: model(batch).mean(),
        train_loader=BATCHES,
        hooks=[*hooks, steps],
        default_hooks=False,
        work_dir=None,
        resume=resume,
        device="cpu",
        **{"epochs": 3, **options},
    ).fit()
    return steps


def test_it_keeps_what_every_hook_promises() -> None:
    check_hook(AccumulationHook, schedule={1: 1, 2: 3})


class TestSchedule:
    def test_begins_at_the_epochs_it_names(self) -> None:
        steps = train(AccumulationHook(schedule={1: 1, 2: 3, 3: 1}))

        assert steps.seen == [1, 2, 3, 3, 3, 4, 5, 6, 7]
        assert steps.weights == [-1, -3, -6, -6, -6, -8, -9, -11, -14]

    def test_lets_a_group_end_that_goes_on_over_the_border(self) -> None:
        steps = train(AccumulationHook(schedule={1: 2, 2: 1}), epochs=2)

        assert steps.seen == [0, 1, 1, 2, 3, 4]
        assert steps.weights == [0, -1.5, -1.5, -3.5, -5.5, -8.5]

    def test_may_count_iterations(self) -> None:
        steps = train(AccumulationHook(schedule={1: 1, 3: 2}, unit="iter"), epochs=2)

        assert steps.seen == [1, 2, 2, 3, 3, 4]

    def test_leaves_the_trainers_own_number_until_it_begins(self) -> None:
        assert train(AccumulationHook(schedule={2: 1}), accumulate=3, epochs=2).seen == [0, 0, 1, 2, 3, 4]

    def test_is_told_to_loops_of_ones_own(self) -> None:
        bus, told = HookBus([AccumulationHook(schedule={1: 1, 3: 4}, unit="iter")]), []
        with bus.run() as run:
            for i in range(4):
                bus.emit("before_train_iter", batch_idx=i)
                told.append(run.require("accumulate"))
                bus.emit("after_train_iter", batch_idx=i)

        assert told == [1, 1, 4, 4]


class TestResume:
    @pytest.mark.parametrize("at", [1, 3, 4, 5])
    def test_goes_on_with_the_group_as_it_was(self, kit: Any, tmp_path: Path, at: int) -> None:
        path, schedule = tmp_path / "saved.pth", {1: 2, 2: 3}
        whole = train(AccumulationHook(schedule=schedule))
        train(AccumulationHook(schedule=schedule), kit.SaveAt(path, at))
        rest = train(AccumulationHook(schedule=schedule), resume=path)

        assert rest.seen == whole.seen[at:]
        assert rest.weights == whole.weights[at:]
