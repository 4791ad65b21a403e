"""Distributed prediction: each sample is predicted once, and every rank returns all predictions in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.distributed.conftest import Launch

pytestmark = pytest.mark.slow

LINE = """
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset
    from hookbus import Hook, Trainer

    class Recorder(Hook):
        def before_predict(self):
            self.indices = []

        def after_predict_iter(self, indices):
            self.indices.append(list(indices))

    def build_trainer(*hooks, **options):
        model = nn.Linear(1, 1)
        with torch.no_grad():
            model.weight.fill_(2.0), model.bias.fill_(1.0)
        return Trainer(model, hooks=hooks, default_hooks=False, work_dir=None, device="cpu", **options)

    inputs = torch.arange(5.0)[:, None]
    data = TensorDataset(inputs, inputs)
"""

UNEVEN = """
    recorder, results = Recorder(), []
    trainer = build_trainer(recorder, loss_fn=nn.functional.l1_loss, val_loader=DataLoader(data, 2, shuffle=True))
    loaders = [
        DataLoader(data, 2),
        DataLoader(data, 2, shuffle=True, drop_last=True),
        DataLoader(data, 2, sampler=DistributedSampler(data, 2, RANK, shuffle=True)),
        DataLoader(data, 5),
    ]
    for loader in loaders:
        predictions = trainer.predict(loader)
        results.append((predictions.flatten().tolist(), recorder.indices))
    metrics, outputs = trainer.validate(return_outputs=True)
    report((results, dict(metrics), outputs.flatten().tolist(), trainer.predict(loaders[0], return_predictions=False)))
"""


def test_each_sample_is_predicted_once_and_returned_in_order_on_every_rank(launch: Launch) -> None:
    for rank, (results, metrics, outputs, nothing) in launch(LINE + UNEVEN).reports.items():
        batches = [[[0, 1], [4]], [[2, 3]]][rank]  # of 5 samples, two each, dealt to two ranks
        whole = [[[0, 1, 2, 3, 4]], []][rank]
        assert results == [[[1, 3, 5, 7, 9], indices] for indices in (batches, batches, batches, whole)]
        assert metrics == {"val/loss": 3.0}
        assert outputs == [1, 3, 5, 7, 9]
        assert nothing is None


SHARDED_BY_USER = """
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(inputs[RANK::2])

    trainer = build_trainer(distributed="none")
    sampler = DistributedSampler(data, 2, RANK, shuffle=False)
    loaders = [DataLoader(Stream(), 2), DataLoader(data, 2, sampler=sampler)]
    report([trainer.predict(loader).flatten().tolist() for loader in loaders])
"""


def test_data_that_the_user_divides_are_gathered(launch: Launch) -> None:
    # A stream has no indices: the samples of rank 0 are followed by those of rank 1. The padding is removed.
    assert set(map(str, launch(LINE + SHARDED_BY_USER).reports.values())) == {
        str([[1.0, 5.0, 9.0, 3.0, 7.0], [1.0, 3.0, 5.0, 7.0, 9.0]])
    }
