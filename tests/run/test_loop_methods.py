"""Access of hooks to the loop through the run, in the Trainer and in a custom loop."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from hookbus import Hook, HookBus, Run, Trainer
from hookbus.errors import ConfigError, LoopError

BATCHES = [(torch.tensor([[1.0], [3.0]]), torch.tensor([[0.0], [0.0]]))] * 4


def make_trainer(*hooks: Hook, **options: Any) -> Trainer:
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0625)
    settings = {"loss_fn": nn.functional.mse_loss, "epochs": 1, "device": "cpu", **options}
    return Trainer(model, optimizer, train_loader=BATCHES, hooks=[*hooks], default_hooks=False, **settings)


def test_hook_changes_the_number_of_accumulated_micro_batches() -> None:
    class Accumulate(Hook):
        def before_train(self, run: Run) -> None:
            assert run.accumulate == 1
            run.accumulate = 2

    trainer = make_trainer(Accumulate())
    run = trainer.fit()
    assert (run.iters_done, run.steps_done, run.accumulate) == (4, 2, 2)


def test_hook_that_replaces_the_step_calls_the_default_one() -> None:
    class Halves(Hook):
        def train_step(self, run: Run, batch: Any) -> Any:
            inputs, targets = batch
            parts = [(inputs[:1], targets[:1]), (inputs[1:], targets[1:])]
            return run.train_micro_batches(parts, [0.5, 0.5])[0]

    class Whole(Hook):
        def train_step(self, run: Run, batch: Any) -> Any:
            return run.train_step(batch)

    weights = [make_trainer(*hooks).fit().model.weight for hooks in ((), (Whole(),), (Halves(),))]
    # The gradient of mean((w x)^2) is 2 w (1 + 9) / 2 = 10 w, so each of the four steps multiplies w by 1 - 10 / 16.
    assert [weight.item() for weight in weights] == [0.375**4] * 3


def test_custom_loop_has_no_default_step() -> None:
    with HookBus().run() as run:
        assert run.accumulate is None
        assert run.eval_metrics == {}
        for operation in (lambda: run.train_step(None), lambda: run.train_micro_batches([], [])):
            with pytest.raises(LoopError, match=r"run\.train_\w+: the loop of this run is not a Trainer"):
                operation()
        with pytest.raises(LoopError, match="run.accumulate: the loop of this run is not a Trainer"):
            run.accumulate = 2


def test_invalid_number_of_micro_batches_is_refused() -> None:
    with make_trainer().runs.run_scope("train") as run, pytest.raises(ConfigError, match="accumulate"):
        run.accumulate = 0


def test_run_can_validate_if_it_has_data_or_a_function() -> None:
    with HookBus().run() as run:
        assert not run.can_validate
    with HookBus().run(validate=lambda run: None) as run:
        assert run.can_validate
