"""hookbus-guards over real processes: the loss of one is not finite, and all do the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.distributed.conftest import Launch

pytestmark = pytest.mark.slow

TRAINING = """
    import torch
    from torch import nn
    from hookbus import Hook, Trainer
    from hookbus.errors import LoopError
    from hookbus_guards import CheckInvalidLossHook

    class Upwards(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(()))

        def forward(self, batch):
            return -self.weight * batch.mean()

    class Watch(Hook):
        def __init__(self):
            super().__init__()
            self.weights, self.steps = [], []

        def after_train_iter(self, run, model):
            self.weights.append(float(model.weight.detach()))
            self.steps.append(run.steps_done)

    NAN = float("nan")
    BATCHES = [[1.0, 2.0, NAN, 4.0, 5.0], [3.0, NAN, NAN, 2.0, 1.0]]

    def train(batches=BATCHES, **settings):
        model, hook, watch = Upwards(), CheckInvalidLossHook(interval=1, **settings), Watch()
        trainer = Trainer(
            model, torch.optim.SGD(model.parameters(), lr=1.0), epochs=1, work_dir=None, device="cpu",
            train_loader=[torch.tensor([each]) for each in batches[RANK]], hooks=[hook, watch], default_hooks=False,
        )
        try:
            run = trainer.fit()
        except LoopError as error:
            return str(error)
        return {
            "outcome": run.outcome, "reasons": run.stop_reasons, "weights": watch.weights, "steps": watch.steps,
            "skipped": hook.skipped, "good": hook.last_good,
        }
"""


ALL_POLICIES = """
    answer({
        "skip": train(policy="skip"),
        "stop": train(policy="stop", before_step=True),
        "stop later": train([[1.0, 2.0, 4.0], [3.0, NAN, 2.0]], policy="stop"),
        "too many": train(policy="skip", max_skips=1),
    })
"""


def test_what_one_cannot_train_on_all_leave_out(launch: Launch) -> None:
    done = launch(TRAINING + ALL_POLICIES)
    first, second = done.answers[0], done.answers[1]

    # means of the two: (1 + 3) / 2, then nothing twice, (4 + 2) / 2, (5 + 1) / 2
    for answers in (first, second):
        assert answers["skip"]["outcome"] == "finished"
        assert answers["skip"]["weights"] == [2.0, 2.0, 2.0, 5.0, 8.0]
        assert answers["skip"]["steps"] == [1, 1, 1, 2, 3]
        assert answers["skip"]["skipped"] == 2
        assert answers["stop"]["outcome"] == "stopped"
        assert answers["stop"]["weights"] == [2.0, 2.0]
        assert answers["stop later"]["outcome"] == "aborted"
        assert answers["stop later"]["steps"] == [1, 2]
    assert (first["skip"]["good"], second["skip"]["good"]) == ([5, -25.0], [5, -5.0])
    assert first["too many"] == second["too many"]
    assert first["too many"].startswith("Rank 0: The loss is not finite at iteration 3, epoch 1: loss is nan.")
    assert "2 consecutive micro-batches are invalid; max_skips is 1." in first["too many"]
    assert first["stop"]["reasons"] == second["stop"]["reasons"]
    assert "Rank 1: The loss is not finite at iteration 2" in first["stop"]["reasons"][0]
