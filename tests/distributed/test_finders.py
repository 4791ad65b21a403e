"""Searches for the learning rate and the batch size with multiple ranks have one result, and leave no trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.distributed.conftest import Launch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # each launch has its own time limit

FIND = """
    import torch, toys
    from torch import nn
    from hookbus import Hook
    from hookbus_finders import BatchSizeFinderHook, LRFinderHook

    RANK = int(__import__("os").environ["RANK"])

    class Net(nn.Module):
        # Only rank 1 exceeds its memory, from a batch of 11 samples on.
        def __init__(self):
            super().__init__()
            self.layers, self.capacity = toys.net(), 10

        def forward(self, inputs):
            if self.training and RANK == 1 and len(inputs) > self.capacity:
                raise torch.OutOfMemoryError("full")
            return self.layers(inputs)

    def train(*hooks):
        torch.manual_seed(0)
        trainer = toys.trainer(Net(), hooks=hooks, epochs=1, batch_size=4, accumulate=2)
        run = trainer.fit()
        return toys.flat_weights(trainer.model), run.steps_done

    sizes = BatchSizeFinderHook(mode="binsearch", margin=0.0, steps_per_trial=1)
    rates = LRFinderHook(num_training_steps=6, smoothing=0.0, early_stop_threshold=None)
    found, plain = train(sizes, rates), train()
    report([sizes.result.size, list(sizes.result.trials), list(rates.result.losses), found == plain])
"""


def test_results_are_those_of_all_ranks(launch: Launch) -> None:
    first, second = launch(FIND).reports.values()
    assert first == second
    size, trials, losses, is_unchanged = first
    assert (size, is_unchanged) == (10, True)
    # A rank reads 32 of the 64 samples.
    assert [number for number, _ in trials] == [2, 4, 8, 16, 12, 10, 11]
    assert len(losses) == 6


REFUSED = """
    import toys
    from torch import nn
    from hookbus.errors import ConfigError
    from hookbus_finders import BatchSizeFinderHook

    model = nn.Sequential(nn.Linear(4, 8), nn.SyncBatchNorm(8), nn.Linear(8, 2))
    try:
        toys.trainer(model, hooks=[BatchSizeFinderHook()], distributed="none").fit()
    except ConfigError as error:
        report(str(error))
"""


def test_step_that_communicates_is_refused(launch: Launch) -> None:
    for message in launch(REFUSED).reports.values():
        assert "a rank that runs out of memory would block the other 1, got SyncBatchNorm" in message
