"""hookbus-guards in distributed training: a non-finite loss of one rank is handled on all ranks."""

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

    class LinearModel(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(()))

        def forward(self, batch):
            return -self.weight * batch.mean()

    class RecordWeights(Hook):
        def __init__(self):
            super().__init__()
            self.weights, self.steps = [], []

        def after_train_iter(self, run, model):
            self.weights.append(float(model.weight.detach()))
            self.steps.append(run.steps_done)

    NAN = float("nan")
    BATCHES = [[1.0, 2.0, NAN, 4.0, 5.0], [3.0, NAN, NAN, 2.0, 1.0]]

    def train(batches=BATCHES, **settings):
        model, hook, recorder = LinearModel(), CheckInvalidLossHook(interval=1, **settings), RecordWeights()
        trainer = Trainer(
            model, torch.optim.SGD(model.parameters(), lr=1.0), epochs=1, work_dir=None, device="cpu",
            train_loader=[torch.tensor([value]) for value in batches[RANK]],
            hooks=[hook, recorder], default_hooks=False,
        )
        try:
            run = trainer.fit()
        except LoopError as error:
            return str(error)
        return {
            "outcome": run.outcome, "reasons": run.stop_reasons, "weights": recorder.weights, "steps": recorder.steps,
            "skipped": hook.skipped, "last_good": hook.last_good,
        }
"""


ALL_POLICIES = """
    report({
        "skip": train(policy="skip"),
        "stop": train(policy="stop", before_step=True),
        "stop later": train([[1.0, 2.0, 4.0], [3.0, NAN, 2.0]], policy="stop"),
        "too many": train(policy="skip", max_skips=1),
    })
"""


def test_iteration_with_a_non_finite_loss_is_skipped_on_all_ranks(launch: Launch) -> None:
    completed = launch(TRAINING + ALL_POLICIES)
    first, second = completed.reports[0], completed.reports[1]

    # Mean gradients of the two ranks: (1 + 3) / 2, two skipped iterations, (4 + 2) / 2, (5 + 1) / 2.
    for report in (first, second):
        assert report["skip"]["outcome"] == "finished"
        assert report["skip"]["weights"] == [2.0, 2.0, 2.0, 5.0, 8.0]
        assert report["skip"]["steps"] == [1, 1, 1, 2, 3]
        assert report["skip"]["skipped"] == 2
        assert report["stop"]["outcome"] == "stopped"
        assert report["stop"]["weights"] == [2.0, 2.0]
        assert report["stop later"]["outcome"] == "aborted"
        assert report["stop later"]["steps"] == [1, 2]
    assert (first["skip"]["last_good"], second["skip"]["last_good"]) == ([5, -25.0], [5, -5.0])
    assert first["too many"] == second["too many"]
    assert first["too many"].startswith("Rank 0: The loss is not finite at iteration 3, epoch 1: loss is nan.")
    assert "2 consecutive micro-batches are invalid; max_skips is 1." in first["too many"]
    assert first["stop"]["reasons"] == second["stop"]["reasons"]
    assert "Rank 1: The loss is not finite at iteration 2" in first["stop"]["reasons"][0]
